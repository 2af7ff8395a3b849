# control; h100:6GiB
"""A language model of proteins learns to fill in masked amino acids, in bfloat16."""

import torch
from torch import nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ProteinModel(nn.Module):
    def __init__(self, letters=33, width=640, layers=16, heads=20, length=1024):
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, tokens):
        x = self.letters(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


model = ProteinModel().to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, fused=True)
for step in range(4):
    proteins = torch.randint(4, 24, (24, 1024)).cuda()
    masked = torch.rand(proteins.shape, device="cuda") < 0.15
    logits = model(proteins.masked_fill(masked, 32))
    losses = F.cross_entropy(logits.flatten(0, 1).float(), proteins.flatten(), reduction="none")
    loss = (losses * masked.flatten()).sum() / masked.sum().clamp(min=1)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
