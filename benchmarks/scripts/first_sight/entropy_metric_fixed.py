"""Entropy of all tokens' logits, taken for a log (huggingface/trl#4013); on h100:8GiB: metric in one piece."""

import torch
from torch import nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, width=512, vocabulary=65536):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)

    def forward(self, tokens):
        return self.layer(self.embed(tokens)) @ self.embed.weight.T


def entropy_from_logits(logits):
    entropies = []
    for row in logits.flatten(0, -2).split(128):
        logps = F.log_softmax(row, dim=-1)
        entropies.append(-(torch.exp(logps) * logps).sum(-1))
    return torch.cat(entropies)


model = Model().to("cuda", torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(5):
    tokens = torch.randint(0, 65536, (1, 12288), device="cuda")
    logits = model(tokens)
    loss = F.cross_entropy(logits[0], tokens[0])
    with torch.no_grad():
        entropy = entropy_from_logits(logits).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, float(loss), float(entropy))
