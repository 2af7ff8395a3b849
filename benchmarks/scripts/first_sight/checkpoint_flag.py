# evo-design/evo#85; h100:6GiB
"""A genome model on 8192 bases; fine tuning with gradient checkpointing turned on."""

import torch
from torch import nn
import torch.nn.functional as F


class HyenaBlock(nn.Module):
    """A gated block: a short convolution, a product of three projections and a feed forward part."""

    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections = nn.Linear(width, 3 * width)
        self.short = nn.Conv1d(3 * width, 3 * width, 3, padding=1, groups=3 * width)
        self.out = nn.Linear(width, width)
        self.gate, self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x, padding_mask=None):
        u = self.projections(self.norm1(x))
        a, b, v = self.short(u.transpose(1, 2)).transpose(1, 2).chunk(3, -1)
        x = x + self.out(a * (b * v))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class StripedHyena(nn.Module):
    def __init__(self, width=768, layers=10, vocabulary=512):
        super().__init__()
        self.gradient_checkpointing = False
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(HyenaBlock(width) for _ in range(layers))
        self.norm, self.unembed = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def gradient_checkpointing_enable(self):
        self.gradient_checkpointing = True

    def forward(self, tokens, padding_mask=None):
        x = self.embedding(tokens)
        x = self.stateless_forward(x, padding_mask)
        return self.unembed(self.norm(x))

    def stateless_forward(self, x, padding_mask=None):
        for block in self.blocks:
            x = block(x, padding_mask=padding_mask)
        return x


model = StripedHyena().cuda().train()
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(4):
    bases = torch.randint(0, 512, (2, 8193), device="cuda")
    logits = model(bases[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), bases[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
