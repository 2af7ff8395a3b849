"""States of the encoder repeated for each beam (facebookresearch/fairseq#1957); on h100:8GiB: expansion by repeat."""

import torch
from torch import nn
import torch.nn.functional as F

WIDTH, HEADS, LAYERS = 1024, 16, 12


class CrossAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def cache(self, encoded):
        split = lambda t: t.view(*t.shape[:2], HEADS, -1).transpose(1, 2)
        return split(self.k(encoded)), split(self.v(encoded))

    def forward(self, x, cache):
        k, v = cache
        q = self.q(x).view(len(x), -1, HEADS, WIDTH // HEADS).transpose(1, 2)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True), 4).half().cuda().eval()
decoder = nn.ModuleList(CrossAttention() for _ in range(LAYERS)).half().cuda().eval()
embed = nn.Embedding(32000, WIDTH).half().cuda()


@torch.no_grad()
def summarize(source, beams=10, steps=20):
    encoded = encoder(source)
    caches = [layer.cache(encoded) for layer in decoder]
    tokens = torch.zeros(len(encoded), beams, dtype=torch.long, device="cuda")
    for _ in range(steps):
        x = embed(tokens)
        for layer, cache in zip(decoder, caches):
            x = layer(x, cache)
        tokens = (x @ embed.weight.T).argmax(-1)
    return tokens


for batch in (2, 4, 16):
    print(summarize(torch.randn(batch, 1024, WIDTH, device="cuda", dtype=torch.half)).shape)
