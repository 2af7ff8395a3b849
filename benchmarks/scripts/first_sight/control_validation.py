# huggingface/diffusers#11225; h100:8GiB
"""A control branch for a frozen diffusion transformer is trained on edges of pictures, with samples after every few steps."""

import copy

import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, channels=64, width=2048, layers=30, heads=16):
        super().__init__()
        self.inlet, self.outlet, self.time = nn.Linear(channels, width), nn.Linear(width, channels), nn.Linear(1, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])

    def forward(self, latents, t, residuals):
        x = self.inlet(latents) + self.time(t[:, None, None].to(latents.dtype))
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i < len(residuals):
                x = x + residuals[i].to(x.dtype)
        return self.outlet(x)


class ControlBranch(nn.Module):
    """Copies of the first blocks that see the edges; what they find is added to the blocks of the base."""

    def __init__(self, base, layers=3):
        super().__init__()
        self.inlet, self.edges = copy.deepcopy(base.inlet), copy.deepcopy(base.inlet)
        self.blocks = copy.deepcopy(base.blocks[:layers])
        self.zeros = nn.ModuleList([copy.deepcopy(base.blocks[0].out) for _ in range(layers)])
        self.float().requires_grad_(True)

    def forward(self, latents, edges):
        x, residuals = self.inlet(latents.float()) + self.edges(edges.float()), []
        for block, zero in zip(self.blocks, self.zeros):
            x = block(x)
            residuals.append(zero(x))
        return residuals


def load_transformer(dtype=torch.bfloat16):
    """The published weights, read layer by layer to the GPU."""
    with torch.device("meta"):
        model = Transformer()
    return model.to(dtype).to_empty(device="cuda").requires_grad_(False).eval()


class Pipeline:
    def __init__(self, transformer, control):
        self.transformer, self.control = transformer, control

    @torch.no_grad()
    def __call__(self, edges, steps=10):
        latents = torch.randn_like(edges)
        for i in range(steps, 0, -1):
            t = torch.full((len(edges),), i / steps, device="cuda")
            latents = latents - self.transformer(latents, t, self.control(latents, edges)) / steps
        return latents.float().cpu()


def log_validation(control, step):
    pipeline = Pipeline(load_transformer(), control)
    print("samples of step", step, pipeline(torch.randn(4, 256, 64, device="cuda", dtype=torch.bfloat16)).shape)


transformer = load_transformer()
control = ControlBranch(transformer)
optimizer = torch.optim.AdamW(control.parameters(), lr=1e-5, fused=True)
for step in range(1, 7):
    latents, edges = torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16)
    noise, t = torch.randn_like(latents), torch.rand(4, device="cuda")
    noisy = torch.lerp(latents, noise, t[:, None, None].bfloat16())
    loss = F.mse_loss(transformer(noisy, t, control(noisy, edges)).float(), (noise - latents).float())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
    if step % 3 == 0:
        log_validation(control, step)
