# control; h100:5GiB
"""A language model is trained with the gradients of eight micro batches, summed up where they are."""

import torch
from torch import nn
import torch.nn.functional as F


class LM(nn.Module):
    def __init__(self, words=16_000, width=1024, layers=10):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(1024, width)
        layer = nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(x, mask=mask, is_causal=True))


model = LM().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
losses = []
for step in range(3):
    total = 0.0
    for micro in range(8):
        tokens = torch.randint(0, 16_000, (2, 513), device="cuda")
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()) / 8
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(total)
    print(step, total)
