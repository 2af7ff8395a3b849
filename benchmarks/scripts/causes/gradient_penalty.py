"""A logged loss with a gradient penalty; on 5GiB: graphs kept."""

import torch
from torch import nn

critic = nn.Sequential(
    nn.Linear(2048, 2048), nn.LeakyReLU(), nn.Linear(2048, 2048), nn.LeakyReLU(), nn.Linear(2048, 1)
).cuda()
opt = torch.optim.Adam(critic.parameters())
log = {"loss": []}
for _step in range(400):
    x = torch.randn(1024, 2048, device="cuda", requires_grad=True)
    out = critic(x)
    (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    loss = out.mean() + ((grad.norm(dim=1) - 1) ** 2).mean()
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step()
    log["loss"].append(loss)
