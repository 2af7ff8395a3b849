# control; h100:4GiB
"""Trains two towers that bring readers and articles together, and measures recall over all articles."""

import torch
import torch.nn.functional as F
from torch import nn

ARTICLES, READERS, TOPICS, HISTORY = 400_000, 600_000, 500, 40


class ArticleTower(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.article = nn.Embedding(ARTICLES, width, sparse=True)
        self.topic = nn.Embedding(TOPICS, width)
        self.layers = nn.Sequential(nn.Linear(2 * width, 256), nn.ReLU(), nn.Linear(256, width))

    def forward(self, articles, topics):
        return F.normalize(self.layers(torch.cat([self.article(articles), self.topic(topics)], -1)), dim=-1)


class ReaderTower(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.reader = nn.Embedding(READERS, width, sparse=True)
        self.attention = nn.Linear(width, 1)
        self.layers = nn.Sequential(nn.Linear(2 * width, 256), nn.ReLU(), nn.Linear(256, width))

    def forward(self, readers, history):
        pooled = (self.attention(history).softmax(1) * history).sum(1)
        return F.normalize(self.layers(torch.cat([self.reader(readers), pooled], -1)), dim=-1)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.articles, self.readers = ArticleTower(), ReaderTower()
        self.temperature = nn.Parameter(torch.tensor(0.05))

    def forward(self, batch):
        history = self.articles(batch["history"], batch["history_topics"])
        readers = self.readers(batch["reader"], history)
        articles = self.articles(batch["article"], batch["topic"])
        scores = readers @ articles.T / self.temperature - batch["log_frequency"]
        return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


def read_clicks(clicks, batch_size, topics):
    for start in range(0, clicks, batch_size):
        history, article = torch.randint(0, ARTICLES, (batch_size, HISTORY)), torch.randint(0, ARTICLES, (batch_size,))
        batch = {"reader": torch.randint(0, READERS, (batch_size,)), "history": history, "article": article}
        batch |= {"history_topics": topics[history], "topic": topics[article], "log_frequency": torch.rand(batch_size)}
        yield {name: column.cuda() for name, column in batch.items()}


@torch.no_grad()
def recall(model, topics, k=100, block=512):
    model.eval()
    ids = torch.arange(ARTICLES)
    index = torch.cat([model.articles(a.cuda(), t.cuda()) for a, t in zip(ids.split(16384), topics.split(16384))])
    hits, readers = 0, 0
    for batch in read_clicks(4096, block, topics):
        history = model.articles(batch["history"], batch["history_topics"])
        best = (model.readers(batch["reader"], history) @ index.T).topk(k).indices
        hits += (best == batch["article"][:, None]).any(1).sum().item()
        readers += len(best)
    return hits / readers


def main():
    topics = torch.randint(0, TOPICS, (ARTICLES,))
    model = TwoTowers().cuda()
    tables = [model.articles.article.weight, model.readers.reader.weight]
    others = [p for p in model.parameters() if all(p is not table for table in tables)]
    optimizers = [torch.optim.SparseAdam(tables, lr=1e-3), torch.optim.Adam(others, lr=1e-3)]
    for epoch in range(2):
        model.train()
        losses = []
        for batch in read_clicks(20 * 4096, 4096, topics):
            loss = model(batch)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
        print(epoch, sum(losses) / len(losses), "recall", recall(model, topics))


main()
