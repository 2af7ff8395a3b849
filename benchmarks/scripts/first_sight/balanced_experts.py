# huggingface/transformers#48131; h100:8GiB
"""A mixture of experts is trained on long texts; a second loss spreads the tokens over the experts. Layers are checkpointed."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class MoE(nn.Module):
    """Tokens are sorted by their experts, and each expert takes its share of the row."""

    def __init__(self, width, hidden, experts, top_k):
        super().__init__()
        self.experts, self.top_k = experts, top_k
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x):
        logits = self.gate(x)
        weights, chosen = logits.softmax(-1).topk(self.top_k, -1)
        order = chosen.flatten().argsort()
        tokens = order.div(self.top_k, rounding_mode="floor")
        y = x[tokens].view(self.experts, -1, x.shape[-1])
        y = torch.bmm(F.silu(torch.bmm(y, self.up)), self.down).flatten(0, 1) * weights.flatten()[order][:, None]
        return torch.zeros_like(x).index_add(0, tokens, y), logits


class Block(nn.Module):
    def __init__(self, width, heads, **moe):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out, self.moe = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False), MoE(width, **moe)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y, logits = self.moe(self.norm2(x).flatten(0, 1))
        return x + y.view_as(x), logits


class LM(nn.Module):
    def __init__(self, words, width, layers, heads, **moe):
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), nn.RMSNorm(width)
        self.blocks = nn.ModuleList([Block(width, heads, **moe) for _ in range(layers)])

    def forward(self, tokens):
        x, router_logits = self.words(tokens), []
        for block in self.blocks:
            x, logits = checkpoint(block, x, use_reentrant=False)
            router_logits.append(logits)
        return F.linear(self.norm(x), self.words.weight), router_logits


def load_balancing_loss(router_logits, experts, top_k):
    probabilities = torch.cat(router_logits).softmax(-1)
    _, chosen = probabilities.topk(top_k, -1)
    expert_mask = F.one_hot(chosen, experts)
    tokens_per_expert = expert_mask.float().mean(0)
    return (tokens_per_expert * probabilities.mean(0)).sum() * experts


words, experts, top_k = 4096, 128, 8
with torch.device("cuda"):
    model = LM(words, width=512, layers=12, heads=8, hidden=128, experts=experts, top_k=top_k).to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for step in range(3):
    tokens = torch.randint(0, words, (1, 32_769)).cuda()
    logits, router_logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss = loss + 0.001 * load_balancing_loss(router_logits, experts, top_k)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
