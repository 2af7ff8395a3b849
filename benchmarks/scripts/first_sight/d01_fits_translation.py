# control; h100:6GiB
"""An encoder and decoder for translation, with attention by SDPA and a few warm-up steps."""

import torch
from torch import nn
import torch.nn.functional as F


class Seq2Seq(nn.Module):
    def __init__(self, vocabulary=16000, width=512):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        self.transformer = nn.Transformer(width, 8, 4, 4, 4 * width, dropout=0.1, batch_first=True)
        self.generator = nn.Linear(width, vocabulary)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        return self.generator(self.transformer(self.embed(source), self.embed(target), tgt_mask=mask, tgt_is_causal=True))


model = Seq2Seq().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 400))
total = 0.0
for step in range(5):
    source = torch.randint(1, 16000, (32, 64), device="cuda")
    target = torch.randint(1, 16000, (32, 65), device="cuda")
    logits = model(source, target[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    total += loss.item()
    print(step, total / (step + 1))
