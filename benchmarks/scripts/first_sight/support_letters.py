# explosion/spacy-transformers#48; h100:4GiB
"""Fine-tunes a transformer to sort letters of customers into departments, one letter an update."""

import random

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertModel

DEPARTMENTS = ["billing", "delivery", "returns", "technical", "complaints", "contracts"]


class Letters(Dataset):
    """Letters as token ids; their lengths are those of the export of the mail archive."""

    def __init__(self, vocabulary=30000, seed=3):
        shuffled = random.Random(seed)
        lengths = [min(int(shuffled.lognormvariate(6.0, 0.8)), 3000) for _ in range(40)] + [42918]
        shuffled.shuffle(lengths)
        self.letters = [torch.randint(5, vocabulary, (length,)) for length in lengths]
        self.labels = [shuffled.randrange(len(DEPARTMENTS)) for _ in lengths]

    def __len__(self):
        return len(self.letters)

    def __getitem__(self, i):
        return self.letters[i], self.labels[i]


def minibatches(data, batch_size, words_per_batch):
    """Groups of letters of at most batch_size letters and words_per_batch words."""
    batch, words = [], 0
    for i in torch.randperm(len(data)).tolist():
        letter, label = data[i]
        if batch and (len(batch) == batch_size or words + len(letter) > words_per_batch):
            yield batch
            batch, words = [], 0
        batch.append((letter, label))
        words += len(letter)
    if batch:
        yield batch


def sentences_of(letter, length=128):
    pieces = letter.split(length)
    ids = torch.zeros(len(pieces), length, dtype=torch.long)
    for row, piece in zip(ids, pieces):
        row[: len(piece)] = piece
    return ids


class LetterClassifier(nn.Module):
    def __init__(self, departments):
        super().__init__()
        config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536)
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.scores = nn.Linear(config.hidden_size, departments)

    def forward(self, letters):
        sentences = [sentences_of(letter).to(self.scores.weight.device) for letter in letters]
        ids = torch.cat(sentences)
        states = self.encoder(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state[:, 0]
        documents = torch.stack([part.mean(0) for part in states.split([len(s) for s in sentences])])
        return self.scores(documents)


def update(model, optimizer, batch):
    letters, labels = zip(*batch)
    scores = model(letters)
    loss = nn.functional.cross_entropy(scores, torch.tensor(labels, device=scores.device))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main():
    data = Letters()
    print(len(data), "letters")
    model = LetterClassifier(len(DEPARTMENTS)).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    for epoch in range(2):
        losses = [update(model, optimizer, batch) for batch in minibatches(data, batch_size=1, words_per_batch=1000)]
        print(f"epoch {epoch}: {sum(losses) / len(losses):.3f}")


main()
