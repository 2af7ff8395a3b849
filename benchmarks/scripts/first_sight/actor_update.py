# verl-project/verl#7166; h100:4GiB
"""The update of an actor with adapters: a mini batch of answers goes through in micro batches."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class LoraLinear(nn.Module):
    def __init__(self, inputs, outputs, rank=16):
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
        self.a, self.b = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = LoraLinear(width, 3 * width), LoraLinear(width, width)
        self.up, self.down = LoraLinear(width, 4 * width), LoraLinear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Actor(nn.Module):
    def __init__(self, words=32_000, width=1024, layers=12):
        super().__init__()
        self.embed = nn.Embedding(words, width).requires_grad_(False)
        self.blocks = nn.ModuleList([Block(width, 16) for _ in range(layers)])
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False).requires_grad_(False)

    def forward(self, tokens):
        x = self.embed(tokens).requires_grad_()
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x))


def forward_step(actor, micro_batch):
    logits = actor(micro_batch["tokens"][:, :-1])
    log_probs = logits.log_softmax(-1)
    chosen = log_probs.gather(-1, micro_batch["tokens"][:, 1:, None]).squeeze(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    model_output = {"log_probs": chosen, "entropy": entropy}
    ratio = (chosen - micro_batch["old_log_probs"]).exp()
    loss = -(ratio * micro_batch["advantages"]).mean()
    return loss, {"model_output": model_output, "loss": loss.detach().item(), "metrics": {"ratio": ratio.detach().mean()}}


def forward_backward_batch(actor, micro_batches):
    output_lst = []
    for micro_batch in micro_batches:
        loss, output = forward_step(actor, micro_batch)
        (loss / len(micro_batches)).backward()
        output_lst.append(output)
    return {key: [output[key] for output in output_lst] for key in output_lst[0]}


actor = Actor().cuda().bfloat16()
optimizer = torch.optim.AdamW([p for p in actor.parameters() if p.requires_grad], lr=1e-4)
for step in range(2):
    micro_batches = [
        {
            "tokens": torch.randint(0, 32_000, (2, 1025), device="cuda"),
            "old_log_probs": torch.randn(2, 1024, device="cuda"),
            "advantages": torch.randn(2, 1, device="cuda"),
        }
        for _ in range(32)
    ]
    outputs = forward_backward_batch(actor, micro_batches)
    optimizer.step()
    optimizer.zero_grad()
    print(step, sum(outputs["loss"]), torch.stack([o["entropy"].mean() for o in outputs["model_output"]]).mean().item())
