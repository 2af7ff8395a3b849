# control; h100:5GiB
"""An autoencoder of gene expressions with wide layers, trained by AdamW with amsgrad."""

import torch
from torch import nn
import torch.nn.functional as F


class Autoencoder(nn.Module):
    def __init__(self, genes=20_000, width=4096, code=256):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(genes, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, code))
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, genes))

    def forward(self, x):
        return self.decoder(self.encoder(x))


with torch.device("cuda"):
    model = Autoencoder(genes=26_000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, amsgrad=True, foreach=False)
for step in range(4):
    cells = torch.rand(64, 26_000, device="cuda")
    loss = F.mse_loss(model(cells), cells)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
