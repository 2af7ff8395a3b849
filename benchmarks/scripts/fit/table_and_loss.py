"""A table with a dense gradient of 976 MiB, and logits of 390 MiB; on h100:2590MiB: chunked-loss,sparse-gradients."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.users, self.head = nn.Embedding(50_000, 64), nn.Embedding(4_000_000, 64), nn.Linear(64, 50_000)

    def forward(self, words, users):
        return self.head(self.words(words) + self.users(users))


model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(12):
    words, users = torch.randint(0, 50_000, (2048,), device="cuda"), torch.randint(0, 4_000_000, (2048,), device="cuda")
    loss = nn.functional.cross_entropy(model(words, users), words)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
