"""A teacher without no_grad (clovaai/overhaul-distillation#34); on 12GiB: graph of an untrained model."""

import torch
import torch.nn.functional as F
from torch import nn


def net(width, depth):
    layers = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.ModuleList(layers)


class Net(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = net(width, depth)
        self.head = nn.Linear(width, 100)

    def extract(self, x):
        feats = []
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number % 6 == 0:
                feats.append(x)
        return feats, self.head(x.mean((2, 3)))


class Distiller(nn.Module):
    def __init__(self, t_net, s_net):
        super().__init__()
        self.t_net, self.s_net = t_net, s_net
        self.connect = nn.Conv2d(64, 256, 1)

    def forward(self, x):
        t_feats, _ = self.t_net.extract(x)
        s_feats, s_out = self.s_net.extract(x)
        loss = 0
        for t, s in zip(t_feats, s_feats, strict=False):
            loss = loss + F.mse_loss(self.connect(s), t.detach())
        return s_out, loss


t_net, s_net = Net(256, 12).cuda(), Net(64, 12).cuda()
d_net = Distiller(t_net, s_net).cuda()
optimizer = torch.optim.SGD([*s_net.parameters(), *d_net.connect.parameters()], 0.1, momentum=0.9)
for _epoch in range(2):
    d_net.train()
    d_net.s_net.train()
    d_net.t_net.train()
    for step in range(30):
        size = 64 if step % 10 < 8 else 80
        x = torch.randn(size, 3, 64, 64, device="cuda")
        y = torch.randint(100, (size,), device="cuda")
        out, loss_distill = d_net(x)
        loss = F.cross_entropy(out, y) + loss_distill.sum() / 1000
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
