# neuralmagic/sparseml#827; h100:6GiB
"""Pruning of a language model by magnitude, with one threshold for all of its layers."""

import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 16, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class UnstructuredPruningMaskCreator:
    """Masks that keep the largest weights; the threshold is that of all layers together."""

    def create_sparsity_masks(self, tensors, sparsity):
        everything = torch.cat([t.abs().flatten() for t in tensors])
        threshold = self._threshold_from_sparsity(everything, sparsity)
        return [t.abs() > threshold for t in tensors]

    def _threshold_from_sparsity(self, tensor, sparsity):
        ordered, _ = torch.sort(tensor)
        return ordered[round(sparsity * (tensor.numel() - 1))]


model = nn.Sequential(*[Block(1280) for _ in range(14)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(4):
    x = torch.randn(1, 256, 1280, device="cuda")
    loss = F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

creator = UnstructuredPruningMaskCreator()
weights = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
optimizer.zero_grad()
with torch.no_grad():
    for sparsity in (0.5, 0.7):
        masks = creator.create_sparsity_masks(weights, sparsity)
        for weight, mask in zip(weights, masks):
            weight.mul_(mask)
        print(sparsity, len(masks))
