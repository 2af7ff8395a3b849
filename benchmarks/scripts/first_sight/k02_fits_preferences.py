# control; h100:6GiB
"""A language model learns from pairs of answers; likelihoods of the model that it began from are made beforehand."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LM(nn.Module):
    def __init__(self, words=16_000, width=768, layers=10, heads=12):
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), nn.RMSNorm(width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.training else layer(x)
        return F.linear(self.norm(x), self.words.weight)


def likelihoods(model, tokens):
    logits = model(tokens[:, :-1])
    return -F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").sum(1)


model = LM().cuda()
pairs = [(torch.randint(0, 16_000, (4, 513)), torch.randint(0, 16_000, (4, 513))) for _ in range(5)]
model.eval()
with torch.no_grad():
    before = [[likelihoods(model, side.cuda()).cpu() for side in pair] for pair in pairs]
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
for step, (pair, (chosen_before, rejected_before)) in enumerate(zip(pairs, before)):
    scores = likelihoods(model, torch.cat(pair).cuda())
    chosen, rejected = scores.chunk(2)
    margin = (chosen - chosen_before.cuda()) - (rejected - rejected_before.cuda())
    loss = -F.logsigmoid(0.1 * margin).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
