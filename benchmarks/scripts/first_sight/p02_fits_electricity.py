# control; h100:2.5GiB
"""Forecasts the load of 321 customers with a patch transformer: training, validation with early stopping, and a test."""

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Electricity(Dataset):
    series = np.random.default_rng(0).standard_normal((3000, 321), dtype=np.float32)

    def __init__(self, begin, end, seq_len=336, pred_len=96):
        self.data, self.seq_len, self.pred_len = torch.from_numpy(self.series[begin:end]), seq_len, pred_len

    def __len__(self):
        return len(self.data) - self.seq_len - self.pred_len + 1

    def __getitem__(self, i):
        middle = i + self.seq_len
        return self.data[i:middle], self.data[middle : middle + self.pred_len]


class RevIN(nn.Module):
    def forward(self, x):
        self.mean, self.std = x.mean(1, keepdim=True).detach(), x.std(1, keepdim=True).detach() + 1e-5
        return (x - self.mean) / self.std

    def inverse(self, x):
        return x * self.std + self.mean


class PatchTST(nn.Module):
    def __init__(self, seq_len=336, pred_len=96, patch=16, stride=8, width=128, heads=8, layers=3):
        super().__init__()
        self.patch, self.stride, patches = patch, stride, (seq_len - patch) // stride + 2
        self.revin = RevIN()
        self.embedding, self.position = nn.Linear(patch, width), nn.Parameter(torch.zeros(patches, width))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.2, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(patches * width, pred_len))

    def forward(self, x):
        batch, _, variables = x.shape
        x = self.revin(x).transpose(1, 2).flatten(0, 1)
        patches = F.pad(x[:, None], (0, self.stride), mode="replicate")[:, 0].unfold(-1, self.patch, self.stride)
        states = self.encoder(self.embedding(patches) + self.position)
        return self.revin.inverse(self.head(states).unflatten(0, (batch, variables)).transpose(1, 2))


def train_epoch(model, loader, optimizer, limit):
    model.train()
    total = torch.zeros((), device="cuda")
    for step, (x, y) in zip(range(limit), loader):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return (total / limit).item()


@torch.no_grad()
def vali(model, loader, limit):
    model.eval()
    return sum(F.mse_loss(model(x.cuda()).cpu(), y).item() for _, (x, y) in zip(range(limit), loader)) / limit


@torch.no_grad()
def test(model, loader, limit):
    model.eval()
    predictions, truths = [], []
    for _, (x, y) in zip(range(limit), loader):
        predictions.append(model(x.cuda()).cpu().numpy())
        truths.append(y.numpy())
    predictions, truths = np.concatenate(predictions), np.concatenate(truths)
    return np.abs(predictions - truths).mean(), ((predictions - truths) ** 2).mean()


def main(epochs=3, patience=2, batch_size=4):
    model = PatchTST().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    training = DataLoader(Electricity(0, 2100), batch_size, shuffle=True, drop_last=True)
    validation, testing = DataLoader(Electricity(1800, 2500), batch_size), DataLoader(Electricity(2300, 3000), batch_size)
    best, best_state, waited = float("inf"), None, 0
    for epoch in range(epochs):
        train_loss, vali_loss = train_epoch(model, training, optimizer, 12), vali(model, validation, 6)
        print(f"Epoch: {epoch + 1} | Train Loss: {train_loss:.4f} Vali Loss: {vali_loss:.4f}")
        if vali_loss < best:
            best, waited = vali_loss, 0
            best_state = copy.deepcopy({name: value.cpu() for name, value in model.state_dict().items()})
        else:
            waited += 1
        if waited >= patience:
            break
    model.load_state_dict(best_state or model.state_dict())
    print("mae {:.4f}, mse {:.4f}".format(*test(model, testing, 20)))


main()
