# control; h100:4GiB
"""A small language model learns from the probabilities that a larger one gives to words."""

import torch
from torch import nn
import torch.nn.functional as F


class LM(nn.Module):
    def __init__(self, width, layers, heads, words=16_000, length=256):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.words(tokens) + self.places.weight[:length]
        x = self.layers(x, mask=self.mask[:length, :length], is_causal=True)
        return F.linear(x, self.words.weight)


teacher = LM(768, 10, 12).cuda().eval().requires_grad_(False)
student = LM(384, 4, 6).cuda()
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
history = []
for step in range(6):
    tokens = torch.randint(0, 16_000, (8, 256)).cuda()
    with torch.no_grad():
        target = F.softmax(teacher(tokens) / 2, dim=-1)
    loss = F.kl_div(F.log_softmax(student(tokens) / 2, dim=-1), target, reduction="batchmean")
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    history.append(loss.item())
print(history)
