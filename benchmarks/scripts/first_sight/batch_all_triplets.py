# huggingface/sentence-transformers#4029; h100:4GiB
"""Sentence embeddings trained by triplets that are found in the batch, two sentences of each label."""

import torch
from torch import nn


class BatchAllTripletLoss(nn.Module):
    def __init__(self, model, margin=5.0):
        super().__init__()
        self.model, self.margin = model, margin

    def forward(self, tokens, labels):
        return self.batch_all_triplet_loss(labels, self.model(tokens))

    @staticmethod
    def get_triplet_mask(labels):
        different = ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        distinct = different.unsqueeze(2) & different.unsqueeze(1) & different.unsqueeze(0)
        equal = labels.unsqueeze(0) == labels.unsqueeze(1)
        return equal.unsqueeze(2) & ~equal.unsqueeze(1) & distinct

    def batch_all_triplet_loss(self, labels, embeddings):
        distances = torch.cdist(embeddings, embeddings)
        triplet_loss = distances.unsqueeze(2) - distances.unsqueeze(1) + self.margin
        mask = self.get_triplet_mask(labels)
        triplet_loss = (mask.float() * triplet_loss).relu()
        positive = (triplet_loss > 1e-16).sum()
        return triplet_loss.sum() / (positive + 1e-16)


class Sentences(nn.Module):
    def __init__(self, width=256, layers=3):
        super().__init__()
        self.words = nn.Embedding(30522, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens):
        return self.encoder(self.words(tokens)).mean(1)


model = Sentences().cuda()
loss_model = BatchAllTripletLoss(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
for batch in (64, 256, 672):
    tokens = torch.randint(0, 30522, (batch, 16), device="cuda")
    labels = torch.arange(batch // 2, device="cuda").repeat_interleave(2, output_size=batch)
    loss = loss_model(tokens, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(batch, loss.item())
