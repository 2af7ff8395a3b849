"""A hidden state that is carried over with its graph (pytorch/pytorch#2198); on 8GiB: graphs kept."""

import torch
from torch import nn

rnn = nn.LSTM(128, 512, 2).cuda()
decoder = nn.Linear(512, 128).cuda()
optimizer = torch.optim.SGD([*rnn.parameters(), *decoder.parameters()], 0.1)
hidden = None
for _i in range(10000):
    data = torch.rand(35, 64, 128, device="cuda")
    out, hidden = rnn(data, hidden)
    loss = (decoder(out) - data).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
