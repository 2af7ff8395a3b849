# ViCCo-Group/thingsvision#150; h100:8GiB
"""Features of pictures from a layer of a vision transformer, and their similarities, to be compared with those that people see."""

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


class ViT(nn.Module):
    def __init__(self, width=768, layers=12, heads=12, classes=1000):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 14, 14)
        self.cls, self.places = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, 257, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, pictures):
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class Extractor:
    def __init__(self, model, layer, token="cls"):
        self.model, self.layer, self.token = model, layer, token
        self.activations = {}
        model.get_submodule(layer).register_forward_hook(self.keep)

    def keep(self, module, inputs, output):
        self.activations[self.layer] = output

    def extract_batch(self, pictures):
        self.model(pictures)
        activation = self.activations.pop(self.layer)
        if self.token == "cls":
            return activation[:, 0]
        if self.token == "mean":
            return activation[:, 1:].mean(1)
        return activation.flatten(1)

    @torch.no_grad()
    def extract_features(self, batches):
        return torch.cat([self.extract_batch(pictures) for pictures in batches])


def load_batches(pictures, size):
    """Batches of normalised pictures, decoded on the GPU."""
    mean, deviation = torch.tensor([0.485, 0.456, 0.406], device="cuda"), torch.tensor([0.229, 0.224, 0.225], device="cuda")
    for start in range(0, pictures, size):
        decoded = torch.randint(0, 256, (min(size, pictures - start), 3, 224, 224), dtype=torch.uint8, device="cuda")
        yield decoded.float().div_(255).sub_(mean[:, None, None]).div_(deviation[:, None, None])


def similarities(features):
    centred = F.normalize(features - features.mean(1, keepdim=True), dim=1)
    return centred @ centred.T


extractor = Extractor(ViT().cuda().eval(), layer="blocks.10")
features = extractor.extract_features(load_batches(pictures=12_000, size=256))
print(features.shape, similarities(features).mean().item())
