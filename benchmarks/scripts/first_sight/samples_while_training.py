# lucidrains/denoising-diffusion-pytorch#75; h100:6GiB
"""A diffusion model that draws samples for a look at them every few steps of its training."""

import torch
from torch import nn
import torch.nn.functional as F


class Unet(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))
        self.first = nn.Conv2d(3, dim, 3, padding=1)
        self.down = nn.ModuleList([nn.Conv2d(dim, 2 * dim, 4, 2, 1), nn.Conv2d(2 * dim, 4 * dim, 4, 2, 1)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(4 * dim, 2 * dim, 4, 2, 1), nn.ConvTranspose2d(4 * dim, dim, 4, 2, 1)])
        self.last = nn.Conv2d(2 * dim, 3, 3, padding=1)

    def forward(self, x, t):
        a = F.silu(self.first(x) + self.time(t[:, None].float())[:, :, None, None])
        b = F.silu(self.down[0](a))
        c = F.silu(self.down[1](b))
        d = torch.cat([F.silu(self.up[0](c)), b], 1)
        return self.last(torch.cat([F.silu(self.up[1](d)), a], 1))


class GaussianDiffusion(nn.Module):
    def __init__(self, model, image_size, timesteps=100):
        super().__init__()
        self.model, self.image_size, self.timesteps = model, image_size, timesteps

    def forward(self, images):
        t = torch.randint(0, self.timesteps, (len(images),), device="cuda")
        noise = torch.randn_like(images)
        level = (t / self.timesteps)[:, None, None, None]
        return F.mse_loss(self.model((1 - level) * images + level * noise, t), noise)

    @torch.inference_mode()
    def sample(self, batch_size, steps=4):
        x = torch.randn(batch_size, 3, self.image_size, self.image_size, device="cuda")
        images = [x]
        for t in reversed(range(steps)):
            x = x - self.model(x, torch.full((batch_size,), t, device="cuda")) / steps
            images.append(x)
        return torch.stack(images, 1)


class Trainer:
    def __init__(self, diffusion_model, train_batch_size=48, save_and_sample_every=3, num_samples=400):
        self.model, self.batch_size, self.num_samples, self.every = diffusion_model, train_batch_size, num_samples, save_and_sample_every
        self.opt = torch.optim.Adam(diffusion_model.parameters(), lr=8e-5)

    def train(self, steps):
        for step in range(1, steps + 1):
            data = torch.rand(self.batch_size, 3, 192, 192, device="cuda")
            loss = self.model(data)
            loss.backward()
            self.opt.step()
            self.opt.zero_grad()
            if step % self.every == 0:
                all_images_list = [self.model.sample(batch_size=25) for _ in range(self.num_samples // 25)]
                all_images = torch.cat(all_images_list, 0)
                self.save(all_images)

    def save(self, images):
        print("saved", tuple((images * 255).byte().cpu().shape))


Trainer(GaussianDiffusion(Unet(), image_size=192).cuda()).train(steps=6)
