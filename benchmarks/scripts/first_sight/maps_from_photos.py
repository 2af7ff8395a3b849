# junyanz/pytorch-CycleGAN-and-pix2pix#512; h100:4GiB
"""Learns to turn aerial photographs into maps with a conditional GAN that shows its discriminator older fakes, too."""

import random

import torch
from torch import nn


def norm_relu(width):
    return nn.Sequential(nn.InstanceNorm2d(width), nn.ReLU(True))


class ResnetBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), norm_relu(width), nn.Conv2d(width, width, 3, padding=1), nn.InstanceNorm2d(width))

    def forward(self, x):
        return x + self.block(x)


class ResnetGenerator(nn.Module):
    def __init__(self, ngf=24, blocks=4):
        super().__init__()
        self.model = nn.Sequential(
            nn.Conv2d(3, ngf, 7, padding=3),
            norm_relu(ngf),
            nn.Conv2d(ngf, 2 * ngf, 3, 2, 1),
            norm_relu(2 * ngf),
            nn.Conv2d(2 * ngf, 4 * ngf, 3, 2, 1),
            norm_relu(4 * ngf),
            *[ResnetBlock(4 * ngf) for _ in range(blocks)],
            nn.ConvTranspose2d(4 * ngf, 2 * ngf, 3, 2, 1, 1),
            norm_relu(2 * ngf),
            nn.ConvTranspose2d(2 * ngf, ngf, 3, 2, 1, 1),
            norm_relu(ngf),
            nn.Conv2d(ngf, 3, 7, padding=3),
            nn.Tanh(),
        )

    def forward(self, x):
        return self.model(x)


class NLayerDiscriminator(nn.Sequential):
    def __init__(self, ndf=32):
        super().__init__(
            nn.Conv2d(6, ndf, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(ndf, 2 * ndf, 4, 2, 1), nn.InstanceNorm2d(2 * ndf), nn.LeakyReLU(0.2), nn.Conv2d(2 * ndf, 1, 4, 1, 1)
        )


class ImagePool:
    def __init__(self, pool_size):
        self.pool_size, self.images = pool_size, []

    def query(self, images):
        result = []
        for image in images.split(1):
            if len(self.images) < self.pool_size:
                self.images.append(image)
                result.append(image)
            elif random.random() > 0.5:
                old = random.randrange(self.pool_size)
                result.append(self.images[old])
                self.images[old] = image
            else:
                result.append(image)
        return torch.cat(result)


class MapModel:
    def __init__(self, pool_size=50, lambda_l1=100.0):
        self.netG, self.netD = ResnetGenerator().cuda(), NLayerDiscriminator().cuda()
        self.fake_pool, self.criterion, self.l1, self.lambda_l1 = ImagePool(pool_size), nn.MSELoss(), nn.L1Loss(), lambda_l1
        self.optimizer_G = torch.optim.Adam(self.netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.optimizer_D = torch.optim.Adam(self.netD.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def gan_loss(self, prediction, real):
        return self.criterion(prediction, torch.full_like(prediction, float(real)))

    def update_D(self, photo, real_map):
        fake = self.fake_pool.query(torch.cat([photo, self.netG(photo)], 1))
        self.optimizer_D.zero_grad()
        loss = (self.gan_loss(self.netD(fake.detach()), False) + self.gan_loss(self.netD(torch.cat([photo, real_map], 1)), True)) / 2
        loss.backward()
        self.optimizer_D.step()
        return loss.item()

    def update_G(self, photo, real_map):
        self.optimizer_G.zero_grad()
        fake_map = self.netG(photo)
        loss = self.gan_loss(self.netD(torch.cat([photo, fake_map], 1)), True) + self.lambda_l1 * self.l1(fake_map, real_map)
        loss.backward()
        self.optimizer_G.step()
        return loss.item()


random.seed(0)
model = MapModel()
for step in range(80):
    photo, real_map = (torch.rand(1, 3, 512, 512).cuda() * 2 - 1 for _ in range(2))
    loss_D, loss_G = model.update_D(photo, real_map), model.update_G(photo, real_map)
    if step % 10 == 0:
        print(f"step {step}: D {loss_D:.3f} G {loss_G:.3f}")
