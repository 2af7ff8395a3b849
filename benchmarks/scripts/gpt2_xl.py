"""GPT-2 XL in float32 with AdamW, four sequences of 1,024 tokens: more than a card of 24 GiB has."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    """Train."""
    device = torch.device("cuda")
    config = GPT2Config(n_embd=1600, n_layer=48, n_head=25)
    model = GPT2LMHeadModel(config).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    for step in range(20):
        input_ids = torch.randint(0, config.vocab_size, (4, 1024)).to(device)
        loss = model(input_ids=input_ids, labels=input_ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
