# control; h100:5GiB
"""Trains a language model in bfloat16 with master weights in float32 and Adam, written out by hand."""

import torch
from torch import nn
import torch.nn.functional as F


class LM(nn.Module):
    def __init__(self, words=32_000, width=1536, layers=12):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 12, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device, dtype=torch.bfloat16)
        return self.head(self.blocks(self.embed(tokens), mask=mask, is_causal=True))


class MasterAdam:
    def __init__(self, model, lr=3e-4, betas=(0.9, 0.95)):
        self.parameters, self.lr, self.betas, self.count = list(model.parameters()), lr, betas, 0
        self.master = [p.detach().float().clone() for p in self.parameters]
        self.first = [torch.zeros_like(m) for m in self.master]
        self.second = [torch.zeros_like(m) for m in self.master]

    @torch.no_grad()
    def step(self):
        self.count += 1
        for p, m, first, second in zip(self.parameters, self.master, self.first, self.second):
            grad = p.grad.float()
            first.lerp_(grad, 1 - self.betas[0])
            second.mul_(self.betas[1]).addcmul_(grad, grad, value=1 - self.betas[1])
            m.addcdiv_(first, second.sqrt().add_(1e-8), value=-self.lr)
            p.copy_(m)
            p.grad = None


model = LM().cuda().bfloat16()
optimizer = MasterAdam(model)
for step in range(3):
    tokens = torch.randint(0, 32_000, (2, 513), device="cuda")
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    print(step, loss.item())
