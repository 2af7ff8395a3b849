# microsoft/SpareNet#12; h100:4GiB
"""A network completes scans of objects in three stages; its losses go to a log after each ten batches."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        return torch.rand(1024, 3), torch.rand(4096, 3)


class AverageMeter:
    def __init__(self, names):
        self.names = names
        self.reset()

    def reset(self):
        self.values = [0.0] * len(self.names)
        self.sums = [0.0] * len(self.names)
        self.counts = [0] * len(self.names)

    def update(self, values):
        for i, value in enumerate(values):
            self.values[i] = value
            self.sums[i] = self.sums[i] + value
            self.counts[i] += 1

    def average(self):
        return {name: float(s / max(c, 1)) for name, s, c in zip(self.names, self.sums, self.counts)}


class CompletionNetwork(nn.Module):
    def __init__(self, width=512, coarse=1024, fine=4096):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(3, 128, 1), nn.BatchNorm1d(128), nn.ReLU(), nn.Conv1d(128, width, 1), nn.BatchNorm1d(width), nn.ReLU())
        self.coarse = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3 * coarse))
        self.middle = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3 * coarse))
        self.refine = nn.Sequential(nn.Conv1d(width + 3, 128, 1), nn.ReLU(), nn.Conv1d(128, 3 * fine // coarse, 1))

    def forward(self, partial):
        code = self.encoder(partial.transpose(1, 2)).amax(2)
        coarse = self.coarse(code).view(len(code), -1, 3)
        middle = coarse + self.middle(code).view_as(coarse)
        joined = torch.cat([middle.transpose(1, 2), code[..., None].expand(-1, -1, middle.shape[1])], 1)
        offsets = self.refine(joined).transpose(1, 2).unflatten(2, (-1, 3))
        return coarse, middle, (middle[:, :, None] + offsets).flatten(1, 2)


def chamfer_distance(first, second):
    distances = torch.cdist(first, second)
    return distances.min(2).values.mean() + distances.min(1).values.mean()


class Runner:
    def __init__(self):
        self.model = CompletionNetwork().cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4, betas=(0.0, 0.9))
        self.meter = AverageMeter(["coarse", "middle", "refine", "total"])

    def train_epoch(self, loader, epoch):
        self.meter.reset()
        for step, (partial, complete) in enumerate(loader):
            partial, complete = partial.cuda(), complete.cuda()
            coarse, middle, refine = self.model(partial)
            coarse_loss = chamfer_distance(coarse, complete)
            middle_loss = chamfer_distance(middle, complete)
            refine_loss = chamfer_distance(refine, complete)
            total = refine_loss if epoch >= 1 else refine_loss + 0.5 * middle_loss
            self.optimizer.zero_grad()
            total.backward()
            self.optimizer.step()
            self.meter.update([coarse_loss, middle_loss, refine_loss, total])
            if step % 10 == 9:
                print(epoch, step, self.meter.average())


runner = Runner()
for epoch in range(2):
    runner.train_epoch(DataLoader(Scans(), batch_size=8, shuffle=True), epoch)
