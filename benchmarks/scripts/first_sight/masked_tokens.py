# facebookresearch/pytext#957; h100:6GiB
"""Pretraining of a text encoder: 15 % of the tokens are replaced by a mask, and the model says what they were."""

import torch
from torch import nn
import torch.nn.functional as F


class MaskedLM(nn.Module):
    def __init__(self, words=50_000, width=512, layers=6, length=512):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.decoder = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, words))

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.decoder(self.encoder(x))


def masked_batch(texts=24, length=512, masked=76, mask_token=3):
    """Tokens with masks, the places of these in each text, and targets, which are -1 elsewhere."""
    tokens = torch.randint(4, 50_000, (texts, length))
    places = torch.rand(texts, length).argsort(1)[:, :masked]
    targets = torch.full_like(tokens, -1).scatter(1, places, tokens.gather(1, places))
    return tokens.scatter(1, places, mask_token).cuda(), places.cuda(), targets.cuda()


model = MaskedLM().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for step in range(4):
    tokens, places, targets = masked_batch()
    logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
