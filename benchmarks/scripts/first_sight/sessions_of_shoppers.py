# sisinflab/warprec#20; h100:4GiB
"""Trains a recurrent recommender of the next item of a session with sampled negatives and a pairwise ranking loss."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SequentialDataset(Dataset):
    def __init__(self, sessions, items, neg_samples, max_seq_len=30):
        random = np.random.default_rng(8)
        self.sessions = [random.integers(1, items, 2 + i % max_seq_len) for i in range(sessions)]
        self.items, self.neg_samples, self.max_seq_len = items, neg_samples, max_seq_len
        self.random = random

    def __len__(self):
        return len(self.sessions)

    def sample_negatives(self, seen):
        negatives = []
        while len(negatives) < self.neg_samples:
            candidate = int(self.random.integers(1, self.items))
            if candidate not in seen:
                negatives.append(candidate)
        negatives = torch.tensor(negatives, dtype=torch.long)
        if self.neg_samples == 1:
            negatives = negatives.squeeze(0)
        return negatives

    def __getitem__(self, i):
        session = self.sessions[i]
        history, positive = session[:-1][-self.max_seq_len :], int(session[-1])
        sequence = torch.zeros(self.max_seq_len, dtype=torch.long)
        sequence[: len(history)] = torch.from_numpy(history)
        length = torch.tensor(len(history))
        return sequence, length, torch.tensor(positive), self.sample_negatives(set(session.tolist()))


class BPRLoss(nn.Module):
    def forward(self, positive_score, negative_score):
        if negative_score.dim() > positive_score.dim():
            positive_score = positive_score.unsqueeze(-1)
        return -nn.functional.logsigmoid(positive_score - negative_score).mean()


class EmbeddingLoss(nn.Module):
    def forward(self, *embeddings):
        return sum(embedding.pow(2).sum() / len(embedding) for embedding in embeddings)


class GRU4Rec(nn.Module):
    def __init__(self, items, embedding_size=128, hidden_size=256, reg_weight=1e-5):
        super().__init__()
        self.item_embedding = nn.Embedding(items, embedding_size, padding_idx=0)
        self.dropout = nn.Dropout(0.2)
        self.gru = nn.GRU(embedding_size, hidden_size, batch_first=True)
        self.dense = nn.Linear(hidden_size, embedding_size)
        self.main_loss, self.reg_loss, self.reg_weight = BPRLoss(), EmbeddingLoss(), reg_weight

    def forward(self, item_seq, item_seq_len):
        output, _ = self.gru(self.dropout(self.item_embedding(item_seq)))
        last = (item_seq_len - 1).view(-1, 1, 1).expand(-1, 1, output.shape[-1])
        return self.dense(output.gather(1, last).squeeze(1))

    def train_step(self, batch):
        item_seq, item_seq_len, pos_item, neg_item = batch
        seq_output = self.forward(item_seq, item_seq_len)
        pos_items_emb = self.item_embedding(pos_item)
        neg_items_emb = self.item_embedding(neg_item)
        pos_score = (seq_output * pos_items_emb).sum(-1)
        neg_score = (seq_output.unsqueeze(1) * neg_items_emb).sum(-1)
        loss = self.main_loss(pos_score, neg_score)
        return loss + self.reg_weight * self.reg_loss(pos_items_emb, neg_items_emb)


def fit(model, loader, epochs, lr=1e-3):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for epoch in range(epochs):
        model.train()
        epoch_loss = 0.0
        for batch in loader:
            batch = [part.cuda(non_blocking=True) for part in batch]
            loss = model.train_step(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
        print(f"epoch {epoch}: {epoch_loss / len(loader):.4f}")


ITEMS = 60_000
dataset = SequentialDataset(sessions=8192, items=ITEMS, neg_samples=1)
loader = DataLoader(dataset, batch_size=4096, shuffle=True)
fit(GRU4Rec(ITEMS).cuda(), loader, epochs=2)
