"""A vocabulary of 128,256 in full precision; on 14GiB: logits."""

import torch
from torch import nn


class LM(nn.Module):
    def __init__(self, v=128256, d=1024):
        super().__init__()
        self.embed, self.layers = (
            nn.Embedding(v, d),
            nn.ModuleList(nn.TransformerEncoderLayer(d, 16, 4 * d, batch_first=True) for _ in range(2)),
        )
        self.lm_head = nn.Linear(d, v, bias=False)

    def forward(self, ids, labels=None):
        h = self.embed(ids)
        for layer in self.layers:
            h = layer(h)
        logits = self.lm_head(h)
        loss = None
        if labels is not None:
            logits = logits.float()
            shift_logits = logits[..., :-1, :].contiguous()
            loss = nn.functional.cross_entropy(
                shift_logits.view(-1, shift_logits.size(-1)), labels[..., 1:].reshape(-1)
            )
        return loss, logits


model = LM().cuda().bfloat16()
opt = torch.optim.AdamW(model.parameters())
for _i in range(2):
    ids = torch.randint(0, 128256, (4, 2048), device="cuda")
    loss, _ = model(ids, ids)
    loss.backward()
    opt.step()
    opt.zero_grad()
