"""Trials of a search that all keep their model (optuna/optuna#5931); on 8GiB: other models."""

import torch
from torch import nn


class Trainer:
    def __init__(self, lr):
        self.model = nn.Sequential(
            nn.Embedding(32000, 768),
            *[nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True) for _ in range(8)],
            nn.Linear(768, 32000),
        ).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr)
        self.callbacks = [self]

    def train(self):
        for _step in range(3):
            ids = torch.randint(0, 32000, (4, 128), device="cuda")
            loss = nn.functional.cross_entropy(self.model(ids).flatten(0, 1), ids.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


def objective(lr):
    trainer = Trainer(lr)
    result = trainer.train()
    study.append((result, trainer))
    torch.cuda.empty_cache()
    return result


study = []
for trial in range(10):
    objective(1e-5 * (trial + 1))
