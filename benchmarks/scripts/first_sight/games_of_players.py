# RUCAIBox/RecBole#686; h100:4GiB
"""Recommends board games from what players played last, with the games' designers, mechanics and publishers as features."""

import torch
import torch.nn.functional as F
from torch import nn

FEATURES = {"year": (80, 1), "artist": (3000, 12), "category": (90, 14), "designer": (4000, 10), "mechanic": (190, 24), "publisher": (5000, 40)}


class Interaction:
    """Columns of equal length, of which some have many tokens a row."""

    def __init__(self, columns):
        self.columns = columns

    def __getitem__(self, name):
        return self.columns[name]

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def map(self, change):
        return Interaction({name: change(column) for name, column in self.columns.items()})

    def rows(self, start, stop):
        return self.map(lambda column: column[start:stop])

    def repeat(self, times):
        return self.map(lambda column: column.repeat(times, *[1] * (column.dim() - 1)))

    def repeat_interleave(self, times):
        return self.map(lambda column: column.repeat_interleave(times, 0))


def get_item_feature(items):
    columns = {"item_id": torch.arange(items)}
    for name, (tokens, length) in FEATURES.items():
        columns[name] = torch.randint(0, tokens, (items, length))
    return Interaction(columns)


class SASRecF(nn.Module):
    def __init__(self, item_feature, items, width=64, length=50):
        super().__init__()
        self.item_embedding, self.position = nn.Embedding(items, width, padding_idx=0), nn.Embedding(length, width)
        self.feature_embeddings = nn.ModuleDict({name: nn.Embedding(tokens, width) for name, (tokens, _) in FEATURES.items()})
        for name in FEATURES:
            self.register_buffer(name, item_feature[name])
        self.join = nn.Linear((1 + len(FEATURES)) * width, width)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 2, 256, batch_first=True), 2, enable_nested_tensor=False)

    def forward(self, histories):
        parts = [self.item_embedding(histories)]
        for name, embedding in self.feature_embeddings.items():
            parts.append(embedding(getattr(self, name)[histories]).mean(-2))
        x = self.join(torch.cat(parts, -1)) + self.position.weight
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.layers(x, mask=mask, is_causal=True)[:, -1]

    def calculate_loss(self, interaction):
        return F.cross_entropy(self(interaction["history"]) @ self.item_embedding.weight.T, interaction["target"])

    def full_sort_predict(self, interaction):
        return self(interaction["history"]) @ self.item_embedding.weight.T


class Trainer:
    def __init__(self, model, item_feature, items, train_batch_size=256, eval_batch_size=256):
        self.model, self.item_feature, self.items = model, item_feature, items
        self.train_batch_size, self.eval_batch_size = train_batch_size, eval_batch_size
        self.item_tensor, self.optimizer = None, torch.optim.Adam(model.parameters(), lr=1e-3)

    def fit(self, data):
        self.model.train()
        for start in range(0, len(data), self.train_batch_size):
            loss = self.model.calculate_loss(data.rows(start, start + self.train_batch_size).map(torch.Tensor.cuda))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        print("loss", loss.item())

    def full_sort_batch(self, interaction):
        if hasattr(self.model, "full_sort_predict"):
            return self.model.full_sort_predict(interaction.map(torch.Tensor.cuda))
        pairs = interaction.map(torch.Tensor.cuda).repeat_interleave(self.items)
        pairs.columns.update(self.item_tensor.rows(0, len(pairs)).columns)
        return self.model.predict(pairs).view(-1, self.items)

    @torch.no_grad()
    def evaluate(self, data, k=10):
        self.model.eval()
        if self.item_tensor is None:
            self.item_tensor = self.item_feature.map(torch.Tensor.cuda).repeat(self.eval_batch_size)
        hits = []
        for start in range(0, len(data), self.eval_batch_size):
            batch = data.rows(start, start + self.eval_batch_size)
            best = self.full_sort_batch(batch).topk(k).indices.cpu()
            hits.append((best == batch["target"][:, None]).any(1).float())
        return torch.cat(hits).mean().item()


items, players = 20000, 4096
games = get_item_feature(items)
data = Interaction({"history": torch.randint(1, items, (players, 50)), "target": torch.randint(1, items, (players,))})
trainer = Trainer(SASRecF(games, items).cuda(), games, items)
trainer.fit(data.rows(0, 3072))
print("Recall@10", trainer.evaluate(data.rows(3072, players)))
