# casper-hansen/AutoAWQ#516; h100:3GiB
"""Looks for the scales of a quantization layer by layer, with calibration texts that go through each layer."""

from collections import defaultdict
from functools import partial

import torch
from torch import nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, width=1536, heads=12, hidden=4096):
        super().__init__()
        self.heads = heads
        self.input_norm, self.post_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv_proj, self.o_proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate_proj, self.up_proj = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        q, k, v = self.qkv_proj(self.input_norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.post_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


class AwqQuantizer:
    def __init__(self, layers, samples):
        self.layers, self.inps = layers, samples

    def get_input_feat(self, layer):
        input_feat = defaultdict(list)

        def cache_input_hook(module, x, y, name):
            input_feat[name].append(x[0].detach().cpu())

        linears = {name: m for name, m in layer.named_modules() if isinstance(m, nn.Linear) and name in ("o_proj", "down_proj")}
        handles = [m.register_forward_hook(partial(cache_input_hook, name=name)) for name, m in linears.items()]
        self.inps = layer(self.inps)
        for handle in handles:
            handle.remove()
        return {name: torch.cat(feats) for name, feats in input_feat.items()}

    @torch.no_grad()
    def quantize(self, group=128):
        for number, layer in enumerate(self.layers):
            layer.cuda()
            for name, feat in self.get_input_feat(layer).items():
                scales = feat.flatten(0, 1)[:4096].cuda().abs().mean(0).clamp(min=1e-4)
                weight = layer.get_submodule(name).weight
                groups = (weight * scales).unflatten(1, (-1, group))
                step = groups.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 7
                weight.copy_(((groups / step).round() * step).flatten(1) / scales)
            layer.cpu()
            print("layer", number)


layers = nn.ModuleList([Layer() for _ in range(4)]).bfloat16()
embedding = nn.Embedding(32_000, 1536).bfloat16()
texts = torch.randint(0, 32_000, (192, 512))
with torch.no_grad():
    quantizer = AwqQuantizer(layers, embedding.cuda()(texts.cuda()))
embedding.cpu()
quantizer.quantize()
