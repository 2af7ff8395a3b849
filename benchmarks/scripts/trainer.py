"""transformers' Trainer: bf16, checkpointing, fused AdamW, evaluation, saving, workers."""

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Tokens(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 1000, (64,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


config = LlamaConfig(
    vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4
)
arguments = TrainingArguments(
    output_dir="out", max_steps=10, per_device_train_batch_size=4, bf16=True, gradient_checkpointing=True,
    optim="adamw_torch_fused", dataloader_num_workers=1, eval_strategy="steps", eval_steps=5, save_steps=5,
    report_to=[], disable_tqdm=True, logging_steps=2,
)  # fmt: skip
Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Tokens(), eval_dataset=Tokens()).train()
