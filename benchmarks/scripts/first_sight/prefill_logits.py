# NovaSky-AI/SkyRL#878; h100:4GiB
"""Generation with a small Llama: a prefill of the prompts, and then one token after another."""

import torch
from torch import nn
import torch.nn.functional as F


class DecoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.input_norm, self.post_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.o_proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate_up, self.down = nn.Linear(width, 5 * width, bias=False), nn.Linear(5 * width // 2, width, bias=False)

    def forward(self, x, cache, position):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.input_norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        cache[0, :, :, position : position + t], cache[1, :, :, position : position + t] = k, v
        keys, values = cache[:, :, :, : position + t]
        y = F.scaled_dot_product_attention(q, keys, values, is_causal=t > 1)
        x = x + self.o_proj(y.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.post_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama3ForCausalLM(nn.Module):
    def __init__(self, vocabulary=128256, width=1024, layers=8, heads=16):
        super().__init__()
        self.width, self.heads = width, heads
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(layers))
        self.norm, self.lm_head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, caches, position):
        x = self.embed_tokens(tokens)
        for layer, cache in zip(self.layers, caches):
            x = layer(x, cache, position)
        return self.lm_head(self.norm(x))


class Generator:
    def __init__(self, model):
        self.model = model

    @torch.inference_mode()
    def generate(self, prompts, new_tokens):
        batch, length = prompts.shape
        shape = 2, batch, self.model.heads, length + new_tokens, self.model.width // self.model.heads
        caches = [torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in self.model.layers]
        logits = self.model(prompts, caches, 0)
        tokens = [logits[:, -1:].float().argmax(-1)]
        for step in range(new_tokens - 1):
            logits = self.model(tokens[-1], caches, length + step)
            tokens.append(logits[:, -1:].float().argmax(-1))
        return torch.cat(tokens, 1)


torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = Llama3ForCausalLM().eval()
generator = Generator(model)
for length in (256, 1024, 3072):
    prompts = torch.randint(0, 128256, (4, length), device="cuda")
    print(length, generator.generate(prompts, new_tokens=8).shape)
