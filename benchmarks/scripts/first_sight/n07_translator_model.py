# control; h100:8GiB
"""Trains an encoder and decoder that translate patents, with checkpointed layers and a few sentences a step."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key_value, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x, source=None, causal=False):
        source = x if source is None else source
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.key_value(source).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width, heads, decoder=False):
        super().__init__()
        self.decoder = decoder
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 + decoder))
        self.attention = Attention(width, heads)
        self.cross = Attention(width, heads) if decoder else None
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, memory=None):
        x = x + self.attention(self.norms[0](x), causal=self.decoder)
        if self.decoder:
            x = x + self.cross(self.norms[2](x), memory)
        return x + self.mlp(self.norms[1](x))


class Translator(nn.Module):
    def __init__(self, vocabulary=32000, width=1280, heads=20, layers=12, length=256):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.encoder = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(width, heads, decoder=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def embed(self, ids):
        return self.tokens(ids) + self.positions.weight[: ids.shape[1]]

    def forward(self, source, target):
        memory = self.embed(source)
        for layer in self.encoder:
            memory = checkpoint(layer, memory, use_reentrant=False)
        x = self.embed(target[:, :-1])
        for layer in self.decoder:
            x = checkpoint(layer, x, memory, use_reentrant=False)
        logits = self.norm(x) @ self.tokens.weight.T
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1)


def sentences(steps, batch_size=4, length=96, vocabulary=32000):
    for _ in range(steps):
        yield torch.randint(4, vocabulary, (batch_size, length)), torch.randint(4, vocabulary, (batch_size, length))


def rate(step, warmup=4000):
    return min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5)


def main(steps=12, accumulate=4):
    torch.manual_seed(7)
    with torch.device("cuda"):
        model = Translator()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} million parameters")
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for step, (source, target) in enumerate(sentences(steps)):
        loss = model(source.cuda(), target.cuda()) / accumulate
        loss.backward()
        if (step + 1) % accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            print(step, loss.item() * accumulate)


main()
