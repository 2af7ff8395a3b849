"""A GPT-2 from its configuration, with the loss of the library; on h100:2330MiB: chunked-loss,checkpoint."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(n_layer=8, n_embd=512, n_head=8, vocab_size=30_000, n_positions=512)
model = GPT2LMHeadModel(config).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(12):
    ids = torch.randint(0, config.vocab_size, (8, 512), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
