# control; h100:10GiB
"""Trains a diffusion transformer of short video clips by flow matching, on latents that were encoded before."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    def __init__(self, width, heads, context=None):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(context or width, 2 * width), nn.Linear(width, width)

    def forward(self, x, context=None):
        k, v = self.kv(x if context is None else context).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(x), k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, heads, text):
        super().__init__()
        self.modulation = nn.Linear(width, 6 * width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(3))
        self.attention, self.cross = Attention(width, heads), Attention(width, heads, text)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x, text, time):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(F.silu(time))[:, None].chunk(6, -1)
        x = x + gate1 * self.attention(self.norm1(x) * (1 + scale1) + shift1)
        x = x + self.cross(self.norm2(x), text)
        return x + gate2 * self.feed_forward(self.norm3(x) * (1 + scale2) + shift2)


class VideoDiT(nn.Module):
    def __init__(self, width=1536, layers=16, heads=16, channels=16, text=1024, patch=(1, 2, 2)):
        super().__init__()
        self.width = width
        self.patchify = nn.Conv3d(channels, width, patch, patch)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList([Block(width, heads, text) for _ in range(layers)])
        self.unpatchify = nn.ConvTranspose3d(width, channels, patch, patch)

    def embed_time(self, t):
        angles = 1000 * t[:, None] * torch.exp(torch.linspace(0, -9.21, 128, device=t.device))
        return self.time(torch.cat([angles.sin(), angles.cos()], -1))

    def forward(self, latents, text, t):
        x = self.patchify(latents)
        grid, time = x.shape[2:], self.embed_time(t)
        x = x.flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = checkpoint(block, x, text, time, use_reentrant=False)
        return self.unpatchify(x.transpose(1, 2).unflatten(2, grid))


class Latents(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.randn(16, 8, 32, 32), torch.randn(77, 1024)


def train(steps=12, batch_size=2, accumulate=4):
    with torch.device("cuda"):
        model = VideoDiT()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} million parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    loader = torch.utils.data.DataLoader(Latents(), batch_size=batch_size, shuffle=True)
    for step, (latents, text) in zip(range(steps * accumulate), loader):
        latents, text = latents.cuda(), text.cuda()
        t, noise = torch.rand(len(latents), device="cuda"), torch.randn_like(latents)
        mixed = torch.lerp(latents, noise, t.view(-1, 1, 1, 1, 1))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            velocity = model(mixed, text, t)
        loss = F.mse_loss(velocity.float(), noise - latents) / accumulate
        loss.backward()
        if (step + 1) % accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            print(f"step {step // accumulate}: {loss.item() * accumulate:.3f}")


train()
