"""Liger's kernels in a small Llama: fused linear cross entropy, norms, SwiGLU, rotary embedding."""

import torch
from liger_kernel.transformers import apply_liger_kernel_to_llama
from transformers import LlamaConfig, LlamaForCausalLM

apply_liger_kernel_to_llama()
config = LlamaConfig(
    vocab_size=4096, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(8):
    ids = torch.randint(0, 4096, (2, 256), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
