# control; h100:8GiB
"""Vectors of passages for a search: sorted by length, the longest first, in batches of as many tokens, and stored in the host's memory."""

import torch
from torch import nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, mask):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        x = self.norm1(x + self.out(attended.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.mlp(x))


class Encoder(nn.Module):
    def __init__(self, words=30_522, width=1024, layers=12, heads=16, length=512):
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(words, width), nn.Embedding(length, width), nn.LayerNorm(width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])

    def forward(self, tokens, mask):
        x = self.norm(self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)))
        for layer in self.layers:
            x = layer(x, mask)
        return F.normalize(x[:, 0].float(), dim=-1)


def batches(lengths, most_tokens):
    """Numbers of passages of alike length; a batch has no more tokens than `most_tokens` when it is filled up."""
    order = lengths.argsort(descending=True)
    while len(order):
        count = max(1, most_tokens // int(lengths[order[0]]))
        yield order[:count]
        order = order[count:]


lengths = torch.randint(32, 513, (3000,))
model = Encoder().to(torch.bfloat16).cuda().eval()
index = torch.empty(len(lengths), 1024)
with torch.inference_mode():
    for chosen in batches(lengths, most_tokens=65_536):
        places = torch.arange(int(lengths[chosen].max()))
        mask = places < lengths[chosen, None]
        tokens = torch.randint(1000, 30_522, mask.shape).masked_fill(~mask, 0)
        index[chosen] = model(tokens.cuda(), mask.cuda()).cpu()
print(index.shape, index.norm())
