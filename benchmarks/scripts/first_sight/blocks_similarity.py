# arcee-ai/PruneMe#7; h100:3GiB
"""Looks for layers of a language model that change their input least, over batches of texts."""

import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 3 * width, bias=False), nn.Linear(3 * width, width, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, words=16_000, width=1024, layers=24, heads=16):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])

    def forward(self, tokens):
        x = self.words(tokens)
        hidden_states = [x]
        for block in self.blocks:
            x = block(x)
            hidden_states.append(x)
        return {"last_hidden_state": x, "hidden_states": tuple(hidden_states)}


def last_non_padded_tokens(hidden_states, lengths):
    """The state of the last token of each text, for each layer."""
    rows = torch.arange(len(lengths), device=lengths.device)
    return [states[rows, lengths - 1] for states in hidden_states]


def distances(states, skip):
    """Angle between a state and the state `skip` layers later, of each layer."""
    return [torch.acos(F.cosine_similarity(a.float(), b.float(), dim=-1).clamp(-1, 1)).mean().item() for a, b in zip(states, states[skip:])]


model = Model().cuda().to(torch.bfloat16).eval()
totals = [0.0] * 17
with torch.no_grad():
    for batch in range(6):
        tokens = torch.randint(0, 16_000, (16, 1024)).cuda()
        lengths = torch.randint(200, 1025, (16,)).cuda()
        outputs = model(tokens)
        states = last_non_padded_tokens(outputs["hidden_states"], lengths)
        for layer, distance in enumerate(distances(states, skip=8)):
            totals[layer] += distance
        print(batch, min(totals))
