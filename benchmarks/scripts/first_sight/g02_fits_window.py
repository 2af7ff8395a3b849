# control; h100:3GiB
"""Chat with a language model whose attention sees the last 4096 tokens: keys and values stand in a ring of that length."""

import torch
from torch import nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, width, heads, window, conversations):
        super().__init__()
        self.heads, self.window = heads, window
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 3 * width, bias=False), nn.Linear(3 * width, width, bias=False)
        ring = torch.zeros(2, conversations, heads, window, width // heads)
        self.register_buffer("ring", ring, persistent=False)

    def forward(self, x, position):
        q, k, v = self.qkv(self.norm1(x)).view(len(x), 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        slot = position % self.window
        self.ring[0, :, :, slot : slot + 1], self.ring[1, :, :, slot : slot + 1] = k, v
        seen = min(position + 1, self.window)
        attended = F.scaled_dot_product_attention(q, self.ring[0, :, :, :seen], self.ring[1, :, :, :seen])
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Chat(nn.Module):
    def __init__(self, words=32_000, width=1024, layers=16, heads=16, window=4096, conversations=6):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList([Layer(width, heads, window, conversations) for _ in range(layers)])
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens, position):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, position)
        return self.head(x[:, -1])


torch.set_default_dtype(torch.bfloat16)
model = Chat().cuda().eval()
tokens, answers = torch.zeros(6, 1, dtype=torch.long, device="cuda"), []
with torch.inference_mode():
    for position in range(4000, 4160):
        tokens = model(tokens, position).argmax(-1, keepdim=True)
        answers.append(tokens.cpu())
print(torch.cat(answers, 1).shape)
