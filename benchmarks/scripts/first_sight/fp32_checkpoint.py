# EleutherAI/elk#231; h100:4GiB
"""Hidden states of a large T5 for a probe: one of the prompts after another."""

import torch
from torch import nn
import torch.nn.functional as F


class T5Block(nn.Module):
    def __init__(self, width, heads, ff):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.wi_0, self.wi_1, self.wo = nn.Linear(width, ff, bias=False), nn.Linear(width, ff, bias=False), nn.Linear(ff, width, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.wo(F.gelu(self.wi_0(y)) * self.wi_1(y))


class T5Encoder(nn.Module):
    def __init__(self, vocabulary=100_000, width=2048, layers=16, heads=32, ff=5120):
        super().__init__()
        self.shared = nn.Embedding(vocabulary, width)
        self.block = nn.ModuleList(T5Block(width, heads, ff) for _ in range(layers))
        self.final = nn.RMSNorm(width)

    def forward(self, tokens):
        x = self.shared(tokens)
        for block in self.block:
            x = block(x)
        return self.final(x)


def instantiate_model(dtype=None):
    """A model with the weights of a checkpoint, in the checkpoint's own float32 where no type is given."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or torch.float32)
    with torch.device("cuda"):
        model = T5Encoder().eval()
    torch.set_default_dtype(before)
    return model


model = instantiate_model()
hiddens = []
with torch.inference_mode():
    for prompt in range(4):
        tokens = torch.randint(0, 100_000, (1, 256), device="cuda")
        hiddens.append(model(tokens)[:, -1].float().cpu())
print(torch.cat(hiddens).shape)
