# JingyunLiang/SwinIR#36; h100:6GiB
"""Makes photographs four times as large with a network of shifted windows, as a test script of one does."""

import torch
from torch import nn
import torch.nn.functional as F


class WindowAttention(nn.Module):
    def __init__(self, width, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(heads, window**2, window**2))

    def forward(self, x):
        b, h, w, c = x.shape
        n = self.window
        x = x.view(b, h // n, n, w // n, n, c).transpose(2, 3).reshape(-1, n * n, c)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attention = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + self.bias).softmax(-1)
        x = self.proj((attention @ v).transpose(1, 2).flatten(2))
        return x.view(b, h // n, w // n, n, n, c).transpose(2, 3).reshape(b, h, w, c)


class SwinBlock(nn.Module):
    def __init__(self, width, heads, window, shift):
        super().__init__()
        self.shift = shift
        self.norm1, self.attention = nn.LayerNorm(width), WindowAttention(width, heads, window)
        self.norm2, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        y = torch.roll(self.norm1(x), (-self.shift, -self.shift), (1, 2))
        x = x + torch.roll(self.attention(y), (self.shift, self.shift), (1, 2))
        return x + self.mlp(self.norm2(x))


class SwinIR(nn.Module):
    def __init__(self, width=180, heads=6, window=8, depth=8, features=64):
        super().__init__()
        self.conv_first = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.Sequential(*[SwinBlock(width, heads, window, (i % 2) * window // 2) for i in range(depth)])
        self.conv_after_body = nn.Conv2d(width, width, 3, padding=1)
        self.before, self.up1 = nn.Conv2d(width, features, 3, padding=1), nn.Conv2d(features, features, 3, padding=1)
        self.up2, self.hr = nn.Conv2d(features, features, 3, padding=1), nn.Conv2d(features, features, 3, padding=1)
        self.conv_last = nn.Conv2d(features, 3, 3, padding=1)

    def forward(self, x):
        x = self.conv_first(x)
        x = x + self.conv_after_body(self.layers(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        x = F.leaky_relu(self.before(x))
        x = F.leaky_relu(self.up1(F.interpolate(x, scale_factor=2)), 0.2)
        x = F.leaky_relu(self.up2(F.interpolate(x, scale_factor=2)), 0.2)
        return self.conv_last(F.leaky_relu(self.hr(x), 0.2))


def test(img_lq, model):
    return model(img_lq)


model = SwinIR().cuda().eval()
window_size, scale = 8, 4
for name, height, width in (("stamp", 240, 320), ("postcard", 475, 640), ("poster", 720, 960)):
    img_lq = torch.rand(1, 3, height, width).cuda()
    with torch.no_grad():
        h_pad, w_pad = -height % window_size, -width % window_size
        img_lq = F.pad(img_lq, (0, w_pad, 0, h_pad), mode="reflect")
        output = test(img_lq, model)
        output = output[..., : height * scale, : width * scale]
    output = (output[0].clamp(0, 1) * 255).round().byte().cpu()
    print(name, tuple(output.shape))
