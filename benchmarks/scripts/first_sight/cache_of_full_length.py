# meta-pytorch/torchtune#1603; h100:5GiB
"""A generate script of a language model with rotary positions and grouped heads: one prompt, 200 new tokens."""

import torch
from torch import nn
import torch.nn.functional as F


class KVCache(nn.Module):
    def __init__(self, batch_size, max_seq_len, heads, head_dim, dtype):
        super().__init__()
        shape = (batch_size, heads, max_seq_len, head_dim)
        self.register_buffer("k_cache", torch.zeros(shape, dtype=dtype), persistent=False)
        self.register_buffer("v_cache", torch.zeros(shape, dtype=dtype), persistent=False)

    def update(self, position, k, v):
        self.k_cache[:, :, position : position + k.shape[2]] = k
        self.v_cache[:, :, position : position + k.shape[2]] = v
        end = position + k.shape[2]
        return self.k_cache[:, :, :end], self.v_cache[:, :, :end]


class Layer(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.dim, self.kv_cache = heads, kv_heads, width // heads, None
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * kv_heads * self.dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width, bias=False), nn.SiLU(), nn.Linear(4 * width, width, bias=False))

    def forward(self, x, position):
        y = self.norm1(x)
        q = self.q(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(y).unflatten(-1, (2, self.kv_heads, -1)).permute(2, 0, 3, 1, 4)
        k, v = self.kv_cache.update(position, k, v)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=position == 0, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class TransformerDecoder(nn.Module):
    def __init__(self, words=32_000, width=1024, layers=18, heads=16, kv_heads=8, max_seq_len=131_072):
        super().__init__()
        self.max_seq_len = max_seq_len
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList([Layer(width, heads, kv_heads) for _ in range(layers)])
        self.norm, self.output = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def setup_caches(self, batch_size, dtype):
        for layer in self.layers:
            layer.kv_cache = KVCache(batch_size, self.max_seq_len, layer.kv_heads, layer.dim, dtype)

    def forward(self, tokens, position):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, position)
        return self.output(self.norm(x[:, -1]))


@torch.inference_mode()
def generate(model, prompt, max_generated_tokens):
    tokens, position = prompt, 0
    generated = []
    for _ in range(max_generated_tokens):
        logits = model(tokens, position)
        position += tokens.shape[1]
        tokens = logits.argmax(-1, keepdim=True)
        generated.append(tokens)
    return torch.cat(generated, 1)


model = TransformerDecoder().cuda().bfloat16().eval()
with torch.device("cuda"):
    model.setup_caches(batch_size=1, dtype=torch.bfloat16)
prompt = torch.randint(0, 32_000, (1, 300), device="cuda")
print(generate(model, prompt, max_generated_tokens=200).shape)
