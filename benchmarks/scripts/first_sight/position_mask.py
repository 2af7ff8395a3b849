# huggingface/transformers#27931; h100:4GiB
"""A decoder for long texts: the mask of what comes later is made once, and each call cuts its part out."""

import torch
from torch import nn
import torch.nn.functional as F


class LlamaConfig:
    def __init__(self, max_position_embeddings=36864):
        self.vocab_size, self.hidden_size, self.layers, self.heads = 32000, 1024, 8, 16
        self.max_position_embeddings = max_position_embeddings


class LlamaDecoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, self.heads = config.hidden_size, config.heads
        self.input_layernorm, self.post_layernorm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.o_proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x, mask):
        q, k, v = self.qkv(self.input_layernorm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.o_proj(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.post_layernorm(x))))


class LlamaModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        n = config.max_position_embeddings
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(LlamaDecoderLayer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden_size)
        later = torch.full((n, n), True, dtype=torch.bool)
        self.register_buffer("causal_mask", torch.triu(later, diagonal=1), persistent=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = ~self.causal_mask[:length, :length]
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


with torch.device("cuda"):
    model = LlamaModel(LlamaConfig()).to(torch.bfloat16)
head = nn.Linear(1024, 32000, bias=False, device="cuda", dtype=torch.bfloat16)
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-5)
for step in range(3):
    tokens = torch.randint(0, 32000, (2, 2049), device="cuda")
    loss = F.cross_entropy(head(model(tokens[:, :-1])).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
