# Pointcept/PointTransformerV3#15; h100:4GiB
"""Labels the points of scanned office rooms with a transformer over patches along a curve, and evaluates it after each epoch."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 13


class GridSample:
    def __init__(self, grid_size):
        self.grid_size = grid_size

    def __call__(self, room):
        cells = np.floor(room["coord"] / self.grid_size).astype(np.int64)
        _, first = np.unique((cells[:, 0] << 40) | (cells[:, 1] << 20) | cells[:, 2], return_index=True)
        return {name: values[first] for name, values in room.items()}


class SphereCrop:
    def __init__(self, point_max):
        self.point_max = point_max

    def __call__(self, room):
        centre = room["coord"][np.random.randint(len(room["coord"]))]
        nearest = np.argsort(np.square(room["coord"] - centre).sum(1))[: self.point_max]
        return {name: values[np.sort(nearest)] for name, values in room.items()}


class Rooms(Dataset):
    def __init__(self, scans, transform):
        self.scans, self.transform = scans, transform

    def __len__(self):
        return len(self.scans)

    def __getitem__(self, i):
        generator = np.random.default_rng(i)
        room = {
            "coord": generator.random((self.scans[i], 3), dtype=np.float32) * np.float32([9, 7, 3]),
            "color": generator.random((self.scans[i], 3), dtype=np.float32),
            "segment": generator.integers(0, CLASSES, self.scans[i]),
        }
        for step in self.transform:
            room = step(room)
        return {name: torch.from_numpy(values) for name, values in room.items()}


def collate(rooms):
    rooms = [{**room, "room": torch.full_like(room["segment"], i)} for i, room in enumerate(rooms)]
    return {name: torch.cat([room[name] for room in rooms]) for name in rooms[0]}


class PatchBlock(nn.Module):
    def __init__(self, width, heads, patch):
        super().__init__()
        self.heads, self.patch = heads, patch
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        patches = F.pad(self.norm(x), (0, 0, 0, -len(x) % self.patch)).view(-1, self.patch, x.shape[-1])
        q, k, v = self.qkv(patches).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).flatten(0, 1)[: len(x)]
        x = x + self.out(out)
        return x + self.mlp(x)


class PointTransformer(nn.Module):
    def __init__(self, width=96, depth=4, heads=6, patch=1024, cell=0.04):
        super().__init__()
        self.cell, self.embedding = cell, nn.Linear(6, width)
        self.blocks, self.head = nn.ModuleList(PatchBlock(width, heads, patch) for _ in range(depth)), nn.Linear(width, CLASSES)

    def forward(self, batch):
        cells = (batch["coord"] / self.cell).long()
        order = ((batch["room"] << 45) | (cells[:, 2] << 30) | (cells[:, 1] << 15) | cells[:, 0]).argsort()
        x = self.embedding(torch.cat([batch["coord"], batch["color"]], 1))[order]
        for block in self.blocks:
            x = block(x)
        return torch.zeros(len(x), CLASSES, device=x.device).index_copy(0, order, self.head(x))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    accuracies = []
    for batch in loader:
        batch = {name: values.cuda() for name, values in batch.items()}
        accuracies.append((model(batch).argmax(1) == batch["segment"]).float().mean().item())
    return sum(accuracies) / len(accuracies)


train = Rooms([280_000, 500_000, 410_000, 620_000], [GridSample(0.02), SphereCrop(point_max=25600)])
val = Rooms([450_000, 1_800_000], [GridSample(0.01)])
model = PointTransformer().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(2):
    model.train()
    for batch in DataLoader(train, batch_size=2, shuffle=True, collate_fn=collate):
        batch = {name: values.cuda() for name, values in batch.items()}
        loss = F.cross_entropy(model(batch), batch["segment"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), evaluate(model, DataLoader(val, batch_size=1, collate_fn=collate)))
