# pyro-ppl/pyro#2363; h100:5GiB
"""A forecast of daily sales for many products, as samples of which quantiles are taken."""

import torch
from torch import nn


class ForecastingModel(nn.Module):
    """Level and season of each product, walked forward by noise of its own in each sample."""

    def __init__(self, products, period=7):
        super().__init__()
        self.level, self.season = nn.Parameter(torch.zeros(products)), nn.Parameter(torch.zeros(period, products))
        self.drift_scale, self.noise_scale = nn.Parameter(torch.zeros(products)), nn.Parameter(torch.zeros(products))

    def forward(self, data, covariates, num_samples):
        duration, products = covariates.shape[0], data.shape[-1]
        drift = self.drift_scale.exp() * torch.randn(num_samples, duration, products, device=data.device)
        level = self.level + drift.cumsum(1)
        season = self.season.repeat(-(-duration // len(self.season)), 1)[:duration]
        mean = torch.exp(level + season + covariates[:, :1])
        return mean + self.noise_scale.exp() * torch.randn_like(mean)


class Forecaster:
    def __init__(self, model):
        self.model = model

    @torch.no_grad()
    def __call__(self, data, covariates, num_samples):
        t = len(data)
        samples = self.model(data, covariates, num_samples)
        return samples[:, t:].cpu()


products, past, future = 3000, 700, 14
model = ForecastingModel(products).cuda()
forecaster = Forecaster(model)
data = torch.zeros(past, products, device="cuda")
covariates = torch.zeros(past + future, 4, device="cuda")
for num_samples in (10, 50, 200):
    samples = forecaster(data, covariates, num_samples)
    print(samples.shape, samples[:, :, :100].quantile(torch.tensor([0.1, 0.5, 0.9]), dim=0).shape)
