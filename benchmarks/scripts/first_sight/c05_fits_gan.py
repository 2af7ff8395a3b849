"""Control: an ordinary GAN with two optimizers that fits; on h100:6GiB: nothing."""

import torch
from torch import nn
import torch.nn.functional as F

generator = nn.Sequential(nn.ConvTranspose2d(128, 512, 4), nn.ReLU(), *[m for a, b in ((512, 256), (256, 128), (128, 64)) for m in (nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU())], nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh()).cuda()
critic = nn.Sequential(*[m for a, b in ((3, 64), (64, 128), (128, 256), (256, 512)) for m in (nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.2))], nn.Conv2d(512, 1, 4), nn.Flatten()).cuda()
of_generator, of_critic = (torch.optim.Adam(m.parameters(), 2e-4, betas=(0.5, 0.999)) for m in (generator, critic))
for step in range(20):
    real = torch.rand(128, 3, 64, 64, device="cuda")
    fake = generator(torch.randn(128, 128, 1, 1, device="cuda"))
    loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
    of_critic.zero_grad()
    loss.backward()
    of_critic.step()
    loss = F.softplus(-critic(fake)).mean()
    of_generator.zero_grad()
    loss.backward()
    of_generator.step()
