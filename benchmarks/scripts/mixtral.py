"""A small Mixtral in bfloat16: eager (its experts in a loop) or grouped_mm."""

import sys

import torch
from transformers import MixtralConfig, MixtralForCausalLM

config = MixtralConfig(
    vocab_size=8192, hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8,
    num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=2, experts_implementation=sys.argv[1],
)  # fmt: skip
model = MixtralForCausalLM(config).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(8):
    ids = torch.randint(0, 8192, (4, 512), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
