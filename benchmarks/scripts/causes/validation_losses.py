"""Losses of a validation, summed up (OpenNMT/OpenNMT-py#1141); on 10GiB: graphs kept or gradients in evaluation."""

import torch
from torch import nn


class Seq(nn.Module):
    def __init__(self, vocab=8000, d=512):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 8, batch_first=True), 4)
        self.generator = nn.Linear(d, vocab)

    def forward(self, ids):
        return self.generator(self.encoder(self.embed(ids)))


class Trainer:
    def __init__(self):
        self.model = Seq().cuda()
        self.optim = torch.optim.Adam(self.model.parameters())

    def loss(self, batch):
        return nn.functional.cross_entropy(self.model(batch).flatten(0, 1), batch.flatten())

    def train(self):
        for _ in range(3):
            loss = self.loss(torch.randint(0, 8000, (16, 64), device="cuda"))
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()

    def validate(self):
        self.model.eval()
        total = 0.0
        for _ in range(100):
            total = total + self.loss(torch.randint(0, 8000, (64, 64), device="cuda"))
        return total.item()


trainer = Trainer()
for _epoch in range(2):
    trainer.train()
    trainer.validate()
