# asappresearch/sru#171; h100:8GiB
"""A tagger of words in short commands with simple recurrent units, whose recurrence has a backward pass of its own."""

import torch
from torch import nn
import torch.nn.functional as F


class Recurrence(torch.autograd.Function):
    """state[t] = forget[t] * state[t - 1] + (1 - forget[t]) * candidate[t]"""

    @staticmethod
    def forward(ctx, candidates, forget, initial):
        states, state = torch.empty_like(forget), initial
        for t in range(forget.shape[1]):
            state = torch.lerp(candidates[:, t], state, forget[:, t])
            states[:, t] = state
        ctx.candidates, ctx.forget = candidates, forget
        ctx.initial, ctx.states = initial, states
        return states

    @staticmethod
    def backward(ctx, grad_states):
        grad_candidates, grad_forget = torch.empty_like(ctx.forget), torch.empty_like(ctx.forget)
        carried = torch.zeros_like(ctx.initial)
        for t in reversed(range(ctx.forget.shape[1])):
            carried = carried + grad_states[:, t]
            before = ctx.states[:, t - 1] if t else ctx.initial
            grad_forget[:, t] = carried * (before - ctx.candidates[:, t])
            kept = carried * ctx.forget[:, t]
            grad_candidates[:, t] = carried - kept
            carried = kept
        return grad_candidates, grad_forget, carried


class SRULayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.project = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.initial = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        candidates, forget, reset = self.project(self.norm(x)).chunk(3, -1)
        states = Recurrence.apply(candidates, forget.sigmoid(), self.initial.expand(len(x), -1))
        return x + reset.sigmoid() * torch.tanh(states)


class Tagger(nn.Module):
    def __init__(self, words=20_000, width=1024, layers=6, tags=48):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.Sequential(*[SRULayer(width) for _ in range(layers)])
        self.head = nn.Linear(width, tags)

    def forward(self, tokens):
        return self.head(self.layers(self.words(tokens)))


def batches(steps, sentences=480, length=16):
    for _ in range(steps):
        yield torch.randint(0, 20_000, (sentences, length)).cuda(), torch.randint(0, 48, (sentences, length)).cuda()


model = Tagger().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
for step, (tokens, tags) in enumerate(batches(steps=12)):
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tags.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 5 == 0:
        print(step, loss.item())
