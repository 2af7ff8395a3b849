"""One backward for the losses of all micro-batches; on 8GiB: graphs kept."""

import torch
from torch import nn

model = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 4).cuda()
opt = torch.optim.AdamW(model.parameters())
for _step in range(3):
    opt.zero_grad()
    total = 0
    for _micro in range(64):
        x = torch.randn(8, 128, 512, device="cuda")
        total = total + (model(x) - x).pow(2).mean() / 64
    total.backward()
    opt.step()
