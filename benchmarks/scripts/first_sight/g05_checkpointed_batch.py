# control; h100:4GiB
"""A vision transformer is trained on pictures in fine patches; each of its layers is checkpointed."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, width=768, layers=12, heads=12, classes=1000):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])
        self.head = nn.Linear(width, classes)

    def forward(self, pictures):
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x.mean(1))


model = ViT().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for step in range(3):
    pictures, labels = torch.randn(48, 3, 224, 224).cuda(), torch.randint(0, 1000, (48,)).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(pictures), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
