"""A small GPT whose blocks and whose loss are each too large; on h100:1775MiB: chunked-loss,checkpoint."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width=384):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.attention(self.norm(x)).view(batch, length, 3, 6, width // 6).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(x.shape)
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(16_000, 384), nn.Linear(384, 16_000)
        self.blocks = nn.ModuleList(Block() for _ in range(12))

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(12):
    ids = torch.randint(0, 16_000, (16, 256), device="cuda")
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
