# FelixOpolka/STGCN-PyTorch#7; h100:4GiB
"""Speeds of cars at 207 sensors of a city are predicted for the next quarter of an hour."""

import torch
from torch import nn
import torch.nn.functional as F

steps_in, steps_out, epochs, batch_size = 12, 3, 2, 50


class TimeBlock(nn.Module):
    def __init__(self, inlet, outlet, kernel=3):
        super().__init__()
        self.conv1, self.conv2, self.conv3 = (nn.Conv2d(inlet, outlet, (1, kernel)) for _ in range(3))

    def forward(self, x):
        x = x.permute(0, 3, 1, 2)
        out = F.relu(self.conv1(x) + torch.sigmoid(self.conv2(x)) + self.conv3(x))
        return out.permute(0, 2, 3, 1)


class STGCNBlock(nn.Module):
    def __init__(self, inlet, spatial, outlet, nodes):
        super().__init__()
        self.temporal1, self.temporal2 = TimeBlock(inlet, outlet), TimeBlock(spatial, outlet)
        self.theta = nn.Parameter(torch.randn(outlet, spatial) / spatial**0.5)
        self.norm = nn.BatchNorm2d(nodes)

    def forward(self, x, adjacency):
        t = self.temporal1(x)
        lfs = torch.einsum("ij,jklm->kilm", adjacency, t.permute(1, 0, 2, 3))
        return self.norm(self.temporal2(F.relu(torch.matmul(lfs, self.theta))))


class STGCN(nn.Module):
    def __init__(self, nodes, features):
        super().__init__()
        self.block1, self.block2 = STGCNBlock(features, 16, 64, nodes), STGCNBlock(64, 16, 64, nodes)
        self.last, self.fully = TimeBlock(64, 64), nn.Linear((steps_in - 10) * 64, steps_out)

    def forward(self, adjacency, x):
        out = self.last(self.block2(self.block1(x, adjacency), adjacency))
        return self.fully(out.reshape(*out.shape[:2], -1))


def generate_dataset(series):
    starts = range(series.shape[2] - steps_in - steps_out + 1)
    features = [series[:, :, i : i + steps_in].permute(0, 2, 1) for i in starts]
    targets = [series[:, 0, i + steps_in : i + steps_in + steps_out] for i in starts]
    return torch.stack(features), torch.stack(targets)


def train_epoch(net, adjacency, inputs, targets, optimizer):
    losses = []
    for chosen in torch.randperm(len(inputs)).split(batch_size):
        net.train()
        optimizer.zero_grad()
        loss = F.mse_loss(net(adjacency, inputs[chosen].cuda()), targets[chosen].cuda())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu())
    return sum(losses) / len(losses)


speeds = torch.rand(207, 2, 8000)
train = generate_dataset(speeds[:, :, :2000])
val = generate_dataset(speeds[:, :, 6000:])
adjacency = torch.rand(207, 207).softmax(1).cuda()
net = STGCN(207, 2).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(epochs):
    loss = train_epoch(net, adjacency, *train, optimizer)
    with torch.no_grad():
        net.eval()
        val_input, val_target = val[0].cuda(), val[1].cuda()
        out = net(adjacency, val_input)
        val_loss = F.mse_loss(out, val_target).item()
        mae = (out.cpu() - val_target.cpu()).abs().mean().item()
    print(epoch, loss.item(), val_loss, mae)
