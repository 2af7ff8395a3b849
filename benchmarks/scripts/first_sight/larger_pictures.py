# lucidrains/imagen-pytorch#300; h100:4GiB
"""The second stage of a cascade of diffusion models learns to make pictures of 128 x 128 out of those of 64 x 64."""

import torch
from torch import nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=64):
        super().__init__()
        self.heads, self.scale, self.norm = heads, dim_head ** -0.5, nn.LayerNorm(dim)
        self.to_q, self.to_kv = nn.Linear(dim, heads * dim_head, bias=False), nn.Linear(dim, 2 * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)

    def forward(self, x):
        x = self.norm(x)
        q = self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) * self.scale
        k, v = self.to_kv(x).chunk(2, dim=-1)
        sim = torch.einsum("b h i d, b j d -> b h i j", q, k)
        attn = sim.softmax(dim=-1, dtype=torch.float32)
        return self.to_out(torch.einsum("b h i j, b j d -> b h i d", attn, v).transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attn = Attention(dim)
        self.ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        shape, x = x.shape, x.flatten(2).transpose(1, 2)
        x = x + self.attn(x)
        return (x + self.ff(x)).transpose(1, 2).reshape(shape)


class ResnetBlock(nn.Module):
    def __init__(self, dim, dim_out, dim_time):
        super().__init__()
        self.time = nn.Linear(dim_time, dim_out)
        self.block1 = nn.Sequential(nn.GroupNorm(8, dim), nn.SiLU(), nn.Conv2d(dim, dim_out, 3, padding=1))
        self.block2 = nn.Sequential(nn.GroupNorm(8, dim_out), nn.SiLU(), nn.Conv2d(dim_out, dim_out, 3, padding=1))
        self.skip = nn.Conv2d(dim, dim_out, 1)

    def forward(self, x, t):
        return self.block2(self.block1(x) + self.time(t)[..., None, None]) + self.skip(x)


class Unet(nn.Module):
    def __init__(self, dim=32, dim_mults=(1, 2), layer_attns=(False, False), dim_time=128):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, dim_time), nn.SiLU(), nn.Linear(dim_time, dim_time))
        self.init_conv, self.final_conv = nn.Conv2d(6, dim, 7, padding=3), nn.Conv2d(dim, 3, 3, padding=1)
        self.downs, self.ups, sizes = nn.ModuleList(), nn.ModuleList(), [dim * m for m in dim_mults]
        for dim_in, dim_out, attend in zip([dim, *sizes], sizes, layer_attns):
            layer = lambda: TransformerBlock(dim_out) if attend else nn.Identity()
            down = nn.Conv2d(dim_in, dim_out, 4, 2, 1)
            self.downs.append(nn.ModuleList([down, ResnetBlock(dim_out, dim_out, dim_time), layer()]))
            up = nn.ConvTranspose2d(dim_out, dim_in, 4, 2, 1)
            self.ups.insert(0, nn.ModuleList([ResnetBlock(2 * dim_out, dim_out, dim_time), layer(), up]))

    def forward(self, x, lowres, t):
        t, x, hiddens = self.time(t[:, None]), self.init_conv(torch.cat([x, lowres], 1)), []
        for down, block, attn in self.downs:
            x = attn(block(down(x), t))
            hiddens.append(x)
        for block, attn, up in self.ups:
            x = up(attn(block(torch.cat([x, hiddens.pop()], 1), t)))
        return self.final_conv(x)


unet = Unet(dim=64, dim_mults=(1, 2), layer_attns=(True, True)).cuda()
optimizer = torch.optim.Adam(unet.parameters(), lr=1e-4)
for step in range(3):
    pictures = torch.rand(2, 3, 128, 128).cuda()
    lowres = F.interpolate(F.interpolate(pictures, scale_factor=0.5), scale_factor=2.0, mode="bilinear")
    t, noise = torch.rand(len(pictures), device="cuda"), torch.randn_like(pictures)
    noisy = pictures * (1 - t)[:, None, None, None] + noise * t[:, None, None, None]
    loss = F.mse_loss(unet(noisy, lowres, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
