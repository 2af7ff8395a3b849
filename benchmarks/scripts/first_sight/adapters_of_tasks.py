# huggingface/peft#738; h100:5GiB
"""One frozen language model, and adapters that were trained for it on many tasks: each is loaded and rated on texts of its task."""

import torch
from torch import nn
import torch.nn.functional as F


class AdaptedLinear(nn.Module):
    def __init__(self, inlet, outlet):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outlet, inlet, dtype=torch.bfloat16, device="cuda"), requires_grad=False)
        self.lora_a, self.lora_b, self.active = nn.ModuleDict(), nn.ModuleDict(), None

    def update_layer(self, name, rank):
        self.lora_a[name] = nn.Linear(self.weight.shape[1], rank, bias=False)
        self.lora_b[name] = nn.Linear(rank, self.weight.shape[0], bias=False)

    def forward(self, x):
        y = F.linear(x, self.weight)
        if self.active is not None:
            y = y + self.lora_b[self.active](self.lora_a[self.active](x.float())).to(y.dtype)
        return y


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.RMSNorm(width, device="cuda"), nn.RMSNorm(width, device="cuda")
        self.qkv, self.out = AdaptedLinear(width, 3 * width), AdaptedLinear(width, width)
        self.up, self.down = AdaptedLinear(width, 4 * width), AdaptedLinear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class AdaptedModel(nn.Module):
    def __init__(self, words=32_000, width=1536, layers=12, heads=12):
        super().__init__()
        self.words = nn.Embedding(words, width, dtype=torch.bfloat16, device="cuda")
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])

    def forward(self, tokens):
        return F.linear(self.blocks(self.words(tokens)), self.words.weight)

    def adapted_layers(self):
        return [module for module in self.modules() if isinstance(module, AdaptedLinear)]

    def load_adapter(self, state, name, rank=256):
        for layer, (a, b) in zip(self.adapted_layers(), state):
            with torch.device("cuda"):
                layer.update_layer(name, rank)
            layer.lora_a[name].weight.data.copy_(a)
            layer.lora_b[name].weight.data.copy_(b)

    def set_adapter(self, name):
        for layer in self.adapted_layers():
            layer.active = name


def load_weights(model, rank=256):
    """Weights as they lie in the adapter's file."""
    shapes = [layer.weight.shape for layer in model.adapted_layers()]
    return ((torch.zeros(rank, inlet), torch.zeros(outlet, rank)) for outlet, inlet in shapes)


@torch.inference_mode()
def evaluate(model, texts):
    losses = [F.cross_entropy(model(text[:, :-1]).flatten(0, 1).float(), text[:, 1:].flatten()) for text in texts]
    return torch.stack(losses).mean().item()


model = AdaptedModel().requires_grad_(False)
scores = {}
for task in [f"task_{number}" for number in range(20)]:
    model.load_adapter(load_weights(model), task)
    model.set_adapter(task)
    texts = torch.randint(0, 32_000, (2, 4, 257)).cuda()
    scores[task] = evaluate(model, texts)
    print(task, scores[task])
