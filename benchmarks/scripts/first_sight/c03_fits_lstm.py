"""Control: an ordinary recurrent model, its state detached, that fits; on h100:4GiB: nothing."""

import torch
from torch import nn
import torch.nn.functional as F

embed, lstm, head = nn.Embedding(10000, 512).cuda(), nn.LSTM(512, 512, 2, batch_first=True).cuda(), nn.Linear(512, 10000).cuda()
parameters = [*embed.parameters(), *lstm.parameters(), *head.parameters()]
optimizer = torch.optim.Adam(parameters)
state, losses = None, []
for step in range(30):
    tokens = torch.randint(0, 10000, (32, 71), device="cuda")
    out, state = lstm(embed(tokens[:, :-1]), state)
    state = tuple(s.detach() for s in state)
    loss = F.cross_entropy(head(out).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    losses.append(loss.item())
