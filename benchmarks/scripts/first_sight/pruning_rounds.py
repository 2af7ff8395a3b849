# pytorch/pytorch#34257; h100:8GiB
"""An encoder of texts is made sparse in rounds: a tenth of the weights that are left is pruned, and the others are trained on."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.nn.utils import prune


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = self.norm1(x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    def __init__(self, words=30_522, width=768, layers=12, heads=12, classes=3):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(128, width))
        self.layers, self.head = nn.Sequential(*[Layer(width, heads) for _ in range(layers)]), nn.Linear(width, classes)

    def forward(self, tokens):
        return self.head(self.layers(self.words(tokens) + self.places)[:, 0])


def sparsity(parameters):
    return 1 - sum(getattr(m, name + "_mask").mean() for m, name in parameters).item() / len(parameters)


model = Encoder().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
parameters = [(module, "weight") for module in model.layers.modules() if isinstance(module, nn.Linear)]
for round_number in range(20):
    prune.global_unstructured(parameters, pruning_method=prune.L1Unstructured, amount=0.1)
    for step in range(2):
        tokens, labels = torch.randint(0, 30_522, (16, 128)).cuda(), torch.randint(0, 3, (16,)).cuda()
        loss = F.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(round_number, sparsity(parameters), loss.item())
