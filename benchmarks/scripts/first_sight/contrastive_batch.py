# huggingface/sentence-transformers#1759; h100:8GiB
"""A bi-encoder trained with in-batch negatives on pairs of a question and a passage."""

import torch
from torch import nn
import torch.nn.functional as F


class SentenceEncoder(nn.Module):
    def __init__(self, vocabulary=30522, width=384, layers=6, heads=12):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.encoder(self.words(tokens) + self.places(places))
        return F.normalize(hidden.mean(1), dim=-1)


class MultipleNegativesRankingLoss(nn.Module):
    def __init__(self, model, scale=20.0):
        super().__init__()
        self.model, self.scale = model, scale

    def forward(self, queries, passages):
        a, b = self.model(queries), self.model(passages)
        scores = self.scale * a @ b.T
        return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


model = SentenceEncoder().cuda()
loss_function = MultipleNegativesRankingLoss(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
for step in range(3):
    queries = torch.randint(0, 30522, (640, 32), device="cuda")
    passages = torch.randint(0, 30522, (640, 96), device="cuda")
    loss = loss_function(queries, passages)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
