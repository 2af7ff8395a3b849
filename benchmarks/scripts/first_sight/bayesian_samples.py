# SebFar/radial_bnn#2; h100:2.5GiB
"""A convolutional network with radial posteriors: each picture is seen with several samples of the weights."""

import torch
from torch import nn
import torch.nn.functional as F


class SVIConv2D(nn.Module):
    """A convolution that draws a filter for each variational sample; x is examples, samples, channels, height, width."""

    def __init__(self, channels, out, kernel=3):
        super().__init__()
        self.mu = nn.Parameter(0.05 * torch.randn(out, channels, kernel, kernel))
        self.rho = nn.Parameter(torch.full((out, channels, kernel, kernel), -4.0))

    def forward(self, x):
        outputs = []
        for sample in range(x.shape[1]):
            epsilon = torch.randn_like(self.mu)
            direction = epsilon / epsilon.norm()
            weight = self.mu + F.softplus(self.rho) * direction * torch.randn((), device=x.device)
            outputs.append(F.conv2d(x[:, sample], weight, padding=1))
        return torch.stack(outputs, 1)


class BayesianSegmenter(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.layers = nn.ModuleList(SVIConv2D(a, width) for a in (3, width, width, width))
        self.last = SVIConv2D(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.last(x)


class Elbo:
    def __init__(self, model, data_points):
        self.model, self.data_points = model, data_points

    def kl_term(self):
        return sum((p.mu.square().sum() - F.softplus(p.rho).log().sum()) for p in self.model.modules() if isinstance(p, SVIConv2D))

    def compute_loss(self, prediction, target):
        target = target[:, None].expand_as(prediction)
        return F.mse_loss(prediction, target) + self.kl_term() / self.data_points


variational_train_samples = 8
model = BayesianSegmenter().cuda()
elbo = Elbo(model, data_points=20_000)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, amsgrad=True)
for step in range(4):
    images = torch.rand(8, 3, 192, 256, device="cuda")
    depth = torch.rand(8, 1, 192, 256, device="cuda")
    optimizer.zero_grad()
    x = images[:, None].expand(-1, variational_train_samples, -1, -1, -1)
    loss = elbo.compute_loss(model(x), depth)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
