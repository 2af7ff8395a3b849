# RUCAIBox/RecBole#1491; h100:3GiB
"""Trains a variational autoencoder of what people watched, which recommends films to them."""

import torch
from torch import nn
import torch.nn.functional as F


class Interactions:
    """The films each person has seen, in rows that are padded with film 0."""

    def __init__(self, users, items, longest=4600):
        self.users, self.items = users, items
        self.lengths = torch.randint(20, 200, (users,))
        self.lengths[:40] = torch.linspace(longest, 800, 40).long()

    def history_item_matrix(self):
        longest = int(self.lengths.max())
        matrix = torch.zeros(self.users, longest, dtype=torch.long)
        value = torch.zeros(self.users, longest)
        for first in range(0, self.users, 4096):
            rows = slice(first, first + 4096)
            columns = 200 if first else longest
            seen = torch.arange(columns) < self.lengths[rows, None]
            matrix[rows, :columns] = torch.randint(1, self.items, seen.shape) * seen
            value[rows, :columns] = seen.float()
        return matrix, value


class MultiVAE(nn.Module):
    def __init__(self, dataset, device, hidden=600, latent=128, dropout=0.5):
        super().__init__()
        self.n_items, self.device, self.dropout = dataset.items, device, dropout
        self.history_item_id, self.history_item_value = dataset.history_item_matrix()
        self.history_item_id = self.history_item_id.to(self.device)
        self.history_item_value = self.history_item_value.to(self.device)
        self.encoder = nn.Sequential(nn.Linear(dataset.items, hidden), nn.Tanh(), nn.Linear(hidden, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.Tanh(), nn.Linear(hidden, dataset.items))

    def get_rating_matrix(self, user):
        col_indices = self.history_item_id[user].flatten()
        row_indices = torch.arange(len(user)).repeat_interleave(self.history_item_id.shape[1])
        rating_matrix = torch.zeros(len(user), self.n_items, device=self.history_item_id.device)
        rating_matrix.index_put_((row_indices.to(col_indices.device), col_indices), self.history_item_value[user].flatten())
        return rating_matrix.to(self.device)

    def forward(self, rating_matrix):
        h = F.dropout(F.normalize(rating_matrix), self.dropout, training=self.training)
        mu, logvar = self.encoder(h).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (logvar / 2).exp() if self.training else mu
        return self.decoder(z), mu, logvar

    def calculate_loss(self, user, anneal):
        rating_matrix = self.get_rating_matrix(user)
        z, mu, logvar = self(rating_matrix)
        kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(1).mean() * anneal
        return -(z.log_softmax(1) * rating_matrix).sum(1).mean() + kl

    def full_sort_predict(self, user):
        return self(self.get_rating_matrix(user))[0]


dataset = Interactions(users=56000, items=18000)
model = MultiVAE(dataset, "cuda").cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step, user in enumerate(torch.randperm(dataset.users).split(512)[:12]):
    loss = model.calculate_loss(user, min(0.2, step / 1000))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
model.eval()
with torch.no_grad():
    for user in torch.arange(2048).split(512):
        print(model.full_sort_predict(user).topk(10, 1).indices.cpu()[0].tolist())
