"""A running sum of losses (pytorch/pytorch#17568); on 8GiB: graphs kept."""

import torch
from torch import nn

model = nn.GRU(256, 512, batch_first=True).cuda()
head = nn.Linear(512, 256).cuda()
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
running_loss = 0
for _step in range(1000):
    x = torch.rand(32, 200, 256, device="cuda")
    out, _ = model(x)
    loss = (head(out[:, -1]) - x[:, -1]).pow(2).mean()
    reg = (out**2).mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    running_loss += loss + 0.01 * reg
