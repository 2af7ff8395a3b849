# meta-pytorch/torchtune#794; h100:4GiB
"""Full fine-tuning of a language model in bfloat16, on one device."""

import torch
from torch import nn
import torch.nn.functional as F


class FeedForward(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.w1, self.w3 = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerDecoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.sa_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.output = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = FeedForward(width, 11008 * width // 4096)

    def forward(self, x):
        q, k, v = self.qkv(self.sa_norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.output(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))


class TransformerDecoder(nn.Module):
    def __init__(self, vocabulary=32000, width=2048, layers=20, heads=16):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(TransformerDecoderLayer(width, heads) for _ in range(layers))
        self.norm, self.output = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


class FullFinetuneRecipeSingleDevice:
    def setup(self):
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            self._model = TransformerDecoder()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=2e-5, foreach=False)

    def train(self, steps):
        for step in range(steps):
            tokens = torch.randint(0, 32000, (1, 513), device="cuda")
            logits = self._model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            self._optimizer.step()
            self._optimizer.zero_grad()


recipe = FullFinetuneRecipeSingleDevice()
recipe.setup()
recipe.train(steps=4)
