# dmlc/dgl#1828; h100:4GiB
"""Ratings of films predicted from embeddings of users and films by a bilinear decoder with a few bases."""

import torch
from torch import nn
import torch.nn.functional as F


class BiDecoder(nn.Module):
    def __init__(self, units, classes, num_basis):
        super().__init__()
        self.P = nn.Parameter(torch.randn(num_basis, units, units) / units)
        self.combine_basis = nn.Linear(num_basis, classes, bias=False)
        self.dropout = nn.Dropout(0.3)

    def forward(self, ufeat, ifeat):
        ufeat, ifeat = self.dropout(ufeat), self.dropout(ifeat)
        out = torch.einsum("ai,bij,aj->ab", ufeat, self.P, ifeat)
        return self.combine_basis(out)


class GCMC(nn.Module):
    def __init__(self, users=60_000, films=10_000, units=64):
        super().__init__()
        self.users, self.films = nn.Embedding(users, units), nn.Embedding(films, units)
        self.encoder = nn.Sequential(nn.Linear(units, units), nn.LeakyReLU(0.1))
        self.decoder = BiDecoder(units, classes=10, num_basis=4)

    def forward(self, user, film):
        users, films = self.encoder(self.users.weight), self.encoder(self.films.weight)
        return self.decoder(users[user], films[film])


model = GCMC().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for edges in (100_000, 400_000, 1_200_000):
    user, film = torch.randint(0, 60_000, (edges,), device="cuda"), torch.randint(0, 10_000, (edges,), device="cuda")
    loss = F.cross_entropy(model(user, film), torch.randint(0, 10, (edges,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(edges, loss.item())
