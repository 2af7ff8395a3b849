"""peft: DoRA on every linear layer of a small Llama."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4
)
adapters = LoraConfig(r=8, target_modules="all-linear", use_dora=True, lora_dropout=0.05)
model = get_peft_model(LlamaForCausalLM(config), adapters).cuda()
optimizer = torch.optim.AdamW(parameter for parameter in model.parameters() if parameter.requires_grad)
for _ in range(8):
    ids = torch.randint(0, 1000, (4, 64), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
