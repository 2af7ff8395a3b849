"""A projection matrix updated at each step with gradients on (beijixiong3510/OWM#3); on 3GiB: graphs kept."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(784, 1024), nn.ReLU())
        self.head = nn.Linear(1024, 10)

    def forward(self, x):
        h = self.body(x)
        return h, self.head(h)


net = Net().cuda()
projection = torch.eye(1024, device="cuda")
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
alpha = 1.0
for _epoch in range(10):
    for _batch in range(400):
        x, y = torch.rand(100, 784).cuda(), torch.randint(0, 10, (100,)).cuda()
        features, out = net(x)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        for name, _weight in net.named_parameters():
            if name == "head.weight":
                r = features.mean(0, keepdim=True)
                k = projection @ r.t()
                projection = projection - k @ k.t() / (alpha + r @ k)
