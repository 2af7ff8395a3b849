# control; h100:5GiB
"""Fine-tunes a transformer to tell the stars of long reviews from their text, in bfloat16 by autocast."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import RobertaConfig, RobertaForSequenceClassification, get_linear_schedule_with_warmup


class Reviews(Dataset):
    def __init__(self, reviews, vocabulary=30000, longest=510, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(10, vocabulary, (reviews, longest), generator=generator)
        self.lengths = torch.randint(longest // 2, longest + 1, (reviews,), generator=generator)
        self.stars = torch.randint(0, 5, (reviews,), generator=generator)

    def __len__(self):
        return len(self.stars)

    def __getitem__(self, i):
        return self.tokens[i, : self.lengths[i]], self.stars[i]


def collate(reviews, padding=1):
    tokens, stars = zip(*reviews)
    ids = nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=padding)
    return {"input_ids": ids, "attention_mask": (ids != padding).long(), "labels": torch.stack(stars)}


def groups_of_parameters(model, decay=0.01):
    """Biases and norms are not decayed."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": decayed, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


class Classifier:
    def __init__(self, config, device="cuda"):
        self.model, self.device = RobertaForSequenceClassification(config).to(device), device

    def to_device(self, batch):
        return {name: value.to(self.device, non_blocking=True) for name, value in batch.items()}

    def fit(self, data, valid, epochs=1, batch_size=64, learning_rate=3e-5):
        loader = DataLoader(data, batch_size, shuffle=True, collate_fn=collate, drop_last=True)
        optimizer = torch.optim.AdamW(groups_of_parameters(self.model), lr=learning_rate)
        steps = epochs * len(loader)
        schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
        for epoch in range(epochs):
            self.model.train()
            total = 0.0
            for batch in loader:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = self.model(**self.to_device(batch)).loss
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)
                total += loss.item()
            print(f"epoch {epoch}: loss {total / len(loader):.3f}, accuracy {self.evaluate(valid):.3f}")

    @torch.no_grad()
    def evaluate(self, data, batch_size=32):
        self.model.eval()
        right = 0
        for batch in DataLoader(data, batch_size, collate_fn=collate):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = self.model(**self.to_device(batch)).logits
            right += (logits.argmax(-1).cpu() == batch["labels"]).sum().item()
        return right / len(data)


def main():
    config = RobertaConfig(
        vocab_size=30000, hidden_size=512, num_hidden_layers=8, num_attention_heads=8, intermediate_size=2048, num_labels=5, max_position_embeddings=514
    )
    classifier = Classifier(config)
    print(sum(p.numel() for p in classifier.model.parameters()) / 1e6, "million parameters")
    classifier.fit(Reviews(640), Reviews(128, seed=1))


main()
