"""LoRA on a Llama of 8 billion parameters in bfloat16: the weights alone are 15 GiB."""

import math

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class LoraLinear(nn.Module):
    """A frozen layer, and beside it a trained one of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 16, alpha: int = 32, dropout: float = 0.05) -> None:
        super().__init__()
        self.base = base
        self.base.weight.requires_grad_(False)
        self.scale = alpha / rank
        self.dropout = nn.Dropout(dropout)
        weight = base.weight
        self.a = nn.Parameter(torch.empty(rank, base.in_features, device=weight.device, dtype=weight.dtype))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, device=weight.device, dtype=weight.dtype))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = (
            self.base(x) + nn.functional.linear(nn.functional.linear(self.dropout(x), self.a), self.b) * self.scale
        )
        return result


def main() -> None:
    """Train."""
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rope_theta=500000.0,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for layer in model.model.layers:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(layer.self_attn, name, LoraLinear(getattr(layer.self_attn, name)))
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    print(f"{sum(p.numel() for p in trained):,} trained parameters")
    optimizer = torch.optim.AdamW(trained, lr=2e-4)
    for step in range(20):
        tokens = torch.randint(0, config.vocab_size, (2, 2048), device="cuda")
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
