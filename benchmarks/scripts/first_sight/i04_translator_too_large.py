# control; h100:8GiB
"""Sentences are translated by a large encoder and decoder in half precision, step by step, with keys and values of the steps before."""

import torch
from torch import nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x, source=None, cache=None, place=None):
        q, source = self.split(self.q(x)), x if source is None else source
        k, v = self.split(self.k(source)), self.split(self.v(source))
        if cache is not None:
            cache[0][:, :, place : place + 1], cache[1][:, :, place : place + 1] = k, v
            k, v = cache[0][:, :, : place + 1], cache[1][:, :, : place + 1]
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width, heads, crosses):
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(width) for _ in range(3 if crosses else 2)])
        self.attention, self.cross = Attention(width, heads), Attention(width, heads) if crosses else None
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x, encoded=None, cache=None, place=None):
        x = x + self.attention(self.norms[0](x), cache=cache, place=place)
        if self.cross is not None:
            x = x + self.cross(self.norms[1](x), encoded)
        return x + self.down(F.gelu(self.up(self.norms[-1](x))))


class Translator(nn.Module):
    def __init__(self, words=64_000, width=2560, layers=24, heads=20):
        super().__init__()
        self.words, self.width, self.heads = nn.Embedding(words, width), width, heads
        self.encoder = nn.ModuleList([Layer(width, heads, crosses=False) for _ in range(layers)])
        self.decoder = nn.ModuleList([Layer(width, heads, crosses=True) for _ in range(layers)])

    @torch.inference_mode()
    def translate(self, sentences, length):
        x = self.words(sentences)
        for layer in self.encoder:
            x = layer(x)
        shape = (len(sentences), self.heads, length, self.width // self.heads)
        caches = [tuple(torch.zeros(shape, dtype=x.dtype, device=x.device) for _ in range(2)) for _ in self.decoder]
        words = [torch.zeros(len(sentences), 1, dtype=torch.long, device=x.device)]
        for place in range(length):
            y = self.words(words[-1])
            for layer, cache in zip(self.decoder, caches):
                y = layer(y, x, cache, place)
            words.append(F.linear(y, self.words.weight).argmax(-1))
        return torch.cat(words[1:], 1)


with torch.device("meta"):
    model = Translator()
model = model.to(torch.float16).to_empty(device="cuda").eval()
for start in range(0, 32, 8):
    sentences = torch.randint(0, 64_000, (8, 40)).cuda()
    print(start, model.translate(sentences, length=12).cpu().shape)
