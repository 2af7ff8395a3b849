"""Four models of RLHF (OpenRLHF/OpenRLHF#193); on 9GiB: frozen models or idle models or gradients freed late."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.mix(self.norm(x))
        return x + self.down(F.gelu(self.up(x)))


class Trunk(nn.Module):
    def __init__(self, outputs, width=1024, depth=12, vocabulary=16000):
        super().__init__()
        self.emb = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, outputs, bias=False)

    def forward(self, ids):
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


actor = Trunk(16000).cuda()
ref = Trunk(16000, depth=12).cuda().eval().requires_grad_(False)
reward = Trunk(1, width=2048, depth=16).cuda().eval().requires_grad_(False)
critic = Trunk(1, width=512).cuda()
opt_a, opt_c = (
    torch.optim.AdamW(actor.parameters(), 1e-6, fused=True),
    torch.optim.AdamW(critic.parameters(), 1e-5, fused=True),
)


def logps(model, ids):
    return -F.cross_entropy(model(ids).transpose(1, 2), ids, reduction="none")


for step in range(8):
    ids = torch.randint(0, 16000, (4 if step < 3 else 40, 256), device="cuda")
    with torch.no_grad():
        old, base = logps(actor, ids), logps(ref, ids)
        score = reward(ids)[:, -1, 0]
        values = critic(ids)[..., 0]
    gain = score[:, None] - 0.1 * (old - base) - values
    loss = -(torch.exp(logps(actor, ids) - old) * gain).mean()
    opt_a.zero_grad()
    loss.backward()
    opt_a.step()
    loss_c = (critic(ids)[..., 0] - score[:, None]).square().mean()
    opt_c.zero_grad()
    loss_c.backward()
    opt_c.step()
