# control; h100:5GiB
"""Tunes low-rank adapters of a language model on letters of customers, and evaluates its perplexity."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM


class Letters(Dataset):
    def __init__(self, letters, vocabulary, longest=512):
        self.letters, self.vocabulary, self.longest = letters, vocabulary, longest

    def __len__(self):
        return self.letters

    def __getitem__(self, i):
        return torch.randint(3, self.vocabulary, (self.longest - (i * 37) % 192,))


def collate(letters):
    input_ids = nn.utils.rnn.pad_sequence(letters, batch_first=True, padding_value=2)
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(letter) for letter in letters], batch_first=True)
    return {"input_ids": input_ids, "attention_mask": mask, "labels": input_ids.masked_fill(mask == 0, -100)}


class LoRALinear(nn.Module):
    def __init__(self, base, rank=16, alpha=32, dropout=0.05):
        super().__init__()
        self.base, self.scale, self.dropout = base, alpha / rank, nn.Dropout(dropout)
        place = {"device": base.weight.device, "dtype": torch.float32}
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features, **place) / math.sqrt(base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank, **place))

    def forward(self, x):
        low = nn.functional.linear(self.dropout(x), self.lora_a.to(x.dtype))
        return self.base(x) + self.scale * nn.functional.linear(low, self.lora_b.to(x.dtype))


def add_adapters(model, names=("q_proj", "k_proj", "v_proj", "o_proj")):
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in names:
                setattr(module, name, LoRALinear(child))
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def train_epoch(model, loader, optimizer, adapters, accumulate=4):
    model.train()
    running = 0.0
    for step, batch in enumerate(loader):
        batch = {name: part.cuda() for name, part in batch.items()}
        loss = model(**batch, use_cache=False).loss / accumulate
        loss.backward()
        running += loss.item()
        if (step + 1) % accumulate == 0:
            nn.utils.clip_grad_norm_(adapters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {step + 1}: {running:.3f}")
            running = 0.0


@torch.no_grad()
def perplexity(model, loader):
    model.eval()
    losses, tokens = 0.0, 0
    for batch in loader:
        batch = {name: part.cuda() for name, part in batch.items()}
        count = int(batch["attention_mask"].shape[0] * batch["attention_mask"].shape[1])
        losses += model(**batch, use_cache=False).loss.item() * count
        tokens += count
    return math.exp(min(20.0, losses / tokens))


config = LlamaConfig(
    vocab_size=32_000, hidden_size=1536, intermediate_size=4096, num_hidden_layers=20, num_attention_heads=12,
    num_key_value_heads=4, max_position_embeddings=1024, attn_implementation="sdpa",
)
with torch.device("cuda"):
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
adapters = add_adapters(model)
optimizer = torch.optim.AdamW(adapters, lr=2e-4)
train_loader = DataLoader(Letters(64, config.vocab_size), batch_size=8, shuffle=True, collate_fn=collate)
valid_loader = DataLoader(Letters(16, config.vocab_size), batch_size=8, collate_fn=collate)
train_epoch(model, train_loader, optimizer, adapters)
print(f"perplexity {perplexity(model, valid_loader):.1f}")
torch.save({name: p.detach().cpu() for name, p in model.named_parameters() if p.requires_grad}, "/dev/null")
