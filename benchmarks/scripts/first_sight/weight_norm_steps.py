# pytorch/pytorch#2176; h100:4GiB
"""A recurrent cell whose weights are normalised, unrolled over the steps of a sequence."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
import torch.nn.functional as F


class WeightNormCell(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.ih = weight_norm(nn.Linear(inputs, 4 * hidden))
        self.hh = weight_norm(nn.Linear(hidden, 4 * hidden, bias=False))

    def forward(self, x, state):
        h, c = state
        i, f, g, o = (self.ih(x) + self.hh(h)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class CharacterModel(nn.Module):
    def __init__(self, characters=256, hidden=1024):
        super().__init__()
        self.hidden, self.embed = hidden, nn.Embedding(characters, 256)
        self.cell, self.decoder = WeightNormCell(256, hidden), nn.Linear(hidden, characters)

    def forward(self, text):
        state = tuple(torch.zeros(len(text), self.hidden, device=text.device) for _ in range(2))
        outputs = []
        for x in self.embed(text).unbind(1):
            state = self.cell(x, state)
            outputs.append(state[0])
        return self.decoder(torch.stack(outputs, 1))


model = CharacterModel().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(2):
    text = torch.randint(0, 256, (16, 201), device="cuda")
    loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    print(step, loss.item())
