# TUDB-Labs/mLoRA#90; h100:4GiB
"""Adapters for two tasks are trained at the same time on one language model in float16; its layers are checkpointed."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Linear(nn.Module):
    def __init__(self, inlet, outlet):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outlet, inlet))
        self.lora_a, self.lora_b = nn.ParameterDict(), nn.ParameterDict()

    def init_lora_weight(self, name, rank):
        outlet, inlet = self.weight.shape
        self.lora_a[name] = nn.Parameter(torch.randn(rank, inlet, device="cuda", dtype=torch.float16) * 0.01)
        self.lora_b[name] = nn.Parameter(torch.zeros(outlet, rank, device="cuda", dtype=torch.float16))

    def forward(self, x, names):
        result = F.linear(x, self.weight)
        added = [F.linear(F.linear(part, self.lora_a[name]), self.lora_b[name])
                 for name, part in zip(names, x.chunk(len(names)))]
        return result + torch.cat(added)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (Linear(width, width) for _ in range(4))
        self.gate, self.up, self.down = Linear(width, 5504), Linear(width, 5504), Linear(5504, width)

    def forward(self, x, names):
        y = self.norm1(x)
        q, k, v = (m(y, names).view(*x.shape[:2], self.heads, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attention.transpose(1, 2).flatten(2), names)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y, names)) * self.up(y, names), names)


class LlamaModel(nn.Module):
    def __init__(self, words=32_000, width=2048, layers=16, heads=16):
        super().__init__()
        self.token_embedding, self.norm = nn.Embedding(words, width), nn.RMSNorm(width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])
        self.output = nn.Linear(width, words, bias=False)

    def init_lora(self, name, rank=8):
        for layer in self.layers:
            for module in (layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down):
                module.init_lora_weight(name, rank)

    def train_paramters(self, name):
        return [p for key, p in self.named_parameters() if "lora_" in key and key.endswith(name)]

    def forward(self, tokens, names):
        x = self.token_embedding(tokens).requires_grad_(True)
        for layer in self.layers:
            x = checkpoint(layer, x, names, use_reentrant=True)
        return self.output(self.norm(x))


def load_model():
    with torch.device("meta"):
        model = LlamaModel()
    return model.half().to_empty(device="cuda")


names = ["summary", "dialogue"]
model = load_model()
for name in names:
    model.init_lora(name)
optimizers = {name: torch.optim.AdamW(model.train_paramters(name), lr=3e-4, fused=True) for name in names}

for step in range(3):
    tokens = torch.randint(0, 32_000, (4, 513)).cuda()
    logits = model(tokens[:, :-1], names)
    losses = [F.cross_entropy(part.flatten(0, 1), target.flatten())
              for part, target in zip(logits.chunk(len(names)), tokens[:, 1:].chunk(len(names)))]
    for optimizer in optimizers.values():
        optimizer.zero_grad()
    sum(losses).backward()
    for optimizer in optimizers.values():
        optimizer.step()
    print(step, [loss.item() for loss in losses])
