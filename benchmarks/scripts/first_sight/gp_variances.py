# cornellius-gp/gpytorch#144; h100:6GiB
"""Regression with a Gaussian process; expected improvement needs the variance of each candidate."""

import torch
from torch import nn


class RBFKernel(nn.Module):
    def __init__(self, dimensions):
        super().__init__()
        self.lengthscale, self.outputscale = nn.Parameter(torch.ones(dimensions)), nn.Parameter(torch.ones(()))

    def forward(self, a, b):
        a, b = a / self.lengthscale, b / self.lengthscale
        square = a.square().sum(-1, keepdim=True) + b.square().sum(-1) - 2 * a @ b.T
        return self.outputscale * torch.exp(-0.5 * square)

    def diag(self, a):
        return self.outputscale.expand(len(a))


class ExactGP(nn.Module):
    def __init__(self, train_x, train_y):
        super().__init__()
        self.covar_module, self.noise = RBFKernel(train_x.shape[1]), 0.01
        self.train_x, self.train_y = train_x, train_y

    def fit(self):
        covar = self.covar_module(self.train_x, self.train_x)
        covar = covar + self.noise * torch.eye(len(covar), device="cuda")
        self.inverse = torch.linalg.inv(covar)

    def posterior(self, test_x):
        cross = self.covar_module(test_x, self.train_x)
        mean = cross @ (self.inverse @ self.train_y)
        test_test_covar = self.covar_module(test_x, test_x)
        covar_correction = cross @ self.inverse @ cross.T
        return mean, test_test_covar - covar_correction


def expected_improvement(model, candidates, best):
    mean, covariance = model.posterior(candidates)
    sigma = covariance.diagonal().clamp_min(1e-9).sqrt()
    u = (mean - best) / sigma
    normal = torch.distributions.Normal(torch.zeros_like(u), torch.ones_like(u))
    return sigma * (torch.exp(normal.log_prob(u)) + u * normal.cdf(u))


train_x = torch.rand(1500, 20, device="cuda")
train_y = torch.sin(train_x.sum(-1))
model = ExactGP(train_x, train_y).cuda()
with torch.no_grad():
    model.fit()
    for number in (2000, 8000, 26000):
        candidates = torch.rand(number, 20, device="cuda")
        print(number, expected_improvement(model, candidates, train_y.max()).topk(4).indices.shape)
