"""Logits kept into the next forward (foundation-model-stack/fms-fsdp#152); on 15000MiB: held over the step."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, vocabulary=64000, width=1024):
        super().__init__()
        self.emb = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(16)])
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        return self.head(self.blocks(self.emb(tokens)))


model = Model().cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)


def train(model, optimizer):
    ddp_stats = torch.zeros(3, device="cuda")
    model.train()
    for _ in range(1, 40):
        input = torch.randint(0, 64000, (8, 2048), device="cuda")
        label = torch.randint(0, 64000, (8, 2048), device="cuda")
        optimizer.zero_grad()
        output = model(input)
        loss = nn.functional.cross_entropy(output.view(-1, output.size(-1)), label.view(-1))
        loss.backward()
        ddp_stats[1] += nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ddp_stats[0] += loss.item()
        ddp_stats[2] += 1


train(model, optimizer)
