# huggingface/transformers#24120; h100:5GiB
"""Writes a text by contrastive search: the best candidates of a step are run, and the least repetitive is taken."""

import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, past):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x)), (k, v)


class LM(nn.Module):
    def __init__(self, words=32_000, width=1024, layers=16):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList([Block(width, 16) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens, past_key_values=None):
        x, present = self.embed(tokens), []
        for i, block in enumerate(self.blocks):
            x, cache = block(x, past_key_values[i] if past_key_values else None)
            present.append(cache)
        x = self.norm(x)
        return self.head(x[:, -1]), x, present


@torch.inference_mode()
def contrastive_search(model, prompt, new_tokens, top_k=6, penalty_alpha=0.6):
    logits, hidden, past = model(prompt)
    text = []
    for _ in range(new_tokens):
        probs, ids = logits.softmax(-1).topk(top_k, -1)
        repeated = [(k.repeat_interleave(top_k, 0), v.repeat_interleave(top_k, 0)) for k, v in past]
        next_logits, next_hidden, candidates = model(ids.view(-1, 1), repeated)
        context = F.normalize(hidden, dim=-1).repeat_interleave(top_k, 0)
        degeneration = (context @ F.normalize(next_hidden, dim=-1).transpose(1, 2)).amax((1, 2)).view_as(probs)
        best = ((1 - penalty_alpha) * probs - penalty_alpha * degeneration).argmax(-1)
        rows = torch.arange(len(best), device="cuda") * top_k + best
        past = [(k[rows], v[rows]) for k, v in candidates]
        hidden = torch.cat([hidden, next_hidden[rows]], 1)
        logits = next_logits[rows]
        text.append(ids.gather(1, best[:, None]))
    return torch.cat(text, 1)


model = LM().cuda().bfloat16().eval()
for length in (512, 1024, 4096):
    prompt = torch.randint(0, 32_000, (2, length), device="cuda")
    print(length, contrastive_search(model, prompt, new_tokens=4).shape)
