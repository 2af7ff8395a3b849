# thuml/Time-Series-Library#314; h100:16GiB
"""Trains TimesNet on one series of 652 time stamps, to forecast the next seven from the last thirty."""

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

configs = SimpleNamespace(
    seq_len=30, label_len=7, pred_len=7, enc_in=1, c_out=1, e_layers=2, d_model=512, d_ff=2048, top_k=5, num_kernels=6, dropout=0.1, batch_size=8
)


class Dataset_Custom(Dataset):
    def __init__(self, configs, length=652):
        time = np.arange(length)
        series = np.sin(time / 7) + 0.3 * np.sin(time / 2.3) + 0.1 * np.random.randn(length)
        self.series = torch.tensor((series - series.mean()) / series.std(), dtype=torch.float32)[:, None]
        self.configs = configs

    def __len__(self):
        return len(self.series) - self.configs.seq_len - self.configs.pred_len + 1

    def __getitem__(self, i):
        middle = i + self.configs.seq_len
        return self.series[i:middle], self.series[middle : middle + self.configs.pred_len]


def fft_for_period(x, k, length):
    amplitude = torch.fft.rfft(F.pad(x, (0, 0, 0, length - x.shape[1])), dim=1).abs().mean((0, 2))
    amplitude[0] = 0
    return [length // int(frequency) for frequency in amplitude.topk(k).indices]


class InceptionBlock(nn.Module):
    def __init__(self, in_channels, out_channels, num_kernels):
        super().__init__()
        self.kernels = nn.ModuleList([nn.Conv2d(in_channels, out_channels, 2 * i + 1, padding=i) for i in range(num_kernels)])

    def forward(self, x):
        return torch.stack([kernel(x) for kernel in self.kernels], -1).mean(-1)


class TimesBlock(nn.Module):
    def __init__(self, configs):
        super().__init__()
        self.length = configs.seq_len + configs.pred_len
        self.conv = nn.Sequential(
            InceptionBlock(configs.d_model, configs.d_ff, configs.num_kernels), nn.GELU(), InceptionBlock(configs.d_ff, configs.d_model, configs.num_kernels)
        )

    def forward(self, x, periods):
        results = []
        for period in periods:
            padding = -self.length % period
            out = F.pad(x, (0, 0, 0, padding)).unflatten(1, (-1, period)).permute(0, 3, 1, 2)
            out = self.conv(out.contiguous()).permute(0, 2, 3, 1).flatten(1, 2)
            results.append(out[:, : self.length])
        return torch.stack(results, -1).mean(-1) + x


class TimesNet(nn.Module):
    def __init__(self, configs):
        super().__init__()
        self.embedding = nn.Conv1d(configs.enc_in, configs.d_model, 3, padding=1, padding_mode="circular")
        self.predict_linear = nn.Linear(configs.seq_len, configs.seq_len + configs.pred_len)
        self.layers = nn.ModuleList([TimesBlock(configs) for _ in range(configs.e_layers)])
        self.norm, self.dropout = nn.LayerNorm(configs.d_model), nn.Dropout(configs.dropout)
        self.projection = nn.Linear(configs.d_model, configs.c_out)
        self.pred_len = configs.pred_len

    def forward(self, x, periods):
        x = self.dropout(self.embedding(x.transpose(1, 2)))
        x = self.predict_linear(x).transpose(1, 2)
        for layer in self.layers:
            x = self.norm(layer(x, periods))
        return self.projection(x)[:, -self.pred_len :]


def train(configs, iterations=20):
    with torch.device("cuda"):
        model = TimesNet(configs)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    criterion = nn.MSELoss()
    loader = DataLoader(Dataset_Custom(configs), batch_size=configs.batch_size, shuffle=True, drop_last=True)
    for i, (batch_x, batch_y) in zip(range(iterations), loader):
        periods = fft_for_period(batch_x, configs.top_k, configs.seq_len + configs.pred_len)
        optimizer.zero_grad()
        loss = criterion(model(batch_x.cuda(), periods), batch_y.cuda())
        loss.backward()
        optimizer.step()
        if (i + 1) % 10 == 0:
            print(f"iters: {i + 1} | loss: {loss.item():.7f}")


train(configs)
