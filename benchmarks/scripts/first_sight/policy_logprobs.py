# huggingface/trl#2799; h100:4GiB
"""Group relative policy optimization: answers are scored by the policy as it was, and then learned in small parts."""

import torch
from torch import nn
import torch.nn.functional as F


class Policy(nn.Module):
    def __init__(self, words=32_768, width=512, layers=6):
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.words(tokens), mask=mask, is_causal=True))


def per_token_logps(model, tokens):
    """Log-probability of each token that was generated."""
    logits = model(tokens[:, :-1])
    logps = logits.log_softmax(-1)
    return torch.gather(logps, -1, tokens[:, 1:, None]).squeeze(-1)


policy = Policy().cuda()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)
for update in range(3):
    tokens = torch.randint(0, 32_768, (16, 1025), device="cuda")
    rewards = torch.rand(16, device="cuda")
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    with torch.no_grad():
        old_logps = per_token_logps(policy, tokens)
    for part in torch.arange(16, device="cuda").split(1):
        ratio = (per_token_logps(policy, tokens[part]) - old_logps[part]).exp()
        gain = torch.min(ratio * advantages[part, None], ratio.clamp(0.8, 1.2) * advantages[part, None])
        (-gain.mean() / 16).backward()
    optimizer.step()
    optimizer.zero_grad()
    print(update, rewards.mean().item())
