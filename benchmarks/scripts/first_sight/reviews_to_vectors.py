# BM-K/Sentence-Embedding-Is-All-You-Need#8; h100:4GiB
"""Turns three thousand sentences of reviews into vectors, and finds the ones that are nearest to a question."""

import numpy as np
import torch
from torch import nn
from transformers import RobertaConfig, RobertaModel


class SentenceEncoder(nn.Module):
    def __init__(self, pooler="cls"):
        super().__init__()
        config = RobertaConfig(
            vocab_size=32000, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536, max_position_embeddings=130, pad_token_id=1
        )
        self.bert, self.pooler = RobertaModel(config, add_pooling_layer=False), pooler

    def forward(self, input_ids, attention_mask):
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        if self.pooler == "cls":
            return states[:, 0], states
        mask = attention_mask[..., None]
        return (states * mask).sum(1) / mask.sum(1), states


class Tokenizer:
    def __init__(self, max_length=64):
        self.max_length = max_length

    def __call__(self, sentences):
        pieces = [[0] + [5 + int(word[1:]) % 31000 for word in sentence.split()][: self.max_length - 2] + [2] for sentence in sentences]
        longest = max(map(len, pieces))
        ids = torch.tensor([p + [1] * (longest - len(p)) for p in pieces])
        return {"input_ids": ids, "attention_mask": (ids != 1).long()}


def reviews(count):
    generator = np.random.default_rng(0)
    words = [f"w{i}" for i in range(8000)]
    return [" ".join(generator.choice(words, generator.integers(20, 60))) for _ in range(count)]


def batches(items, size):
    for start in range(0, len(items), size):
        yield items[start : start + size]


def encode(model, tokenizer, docs, batch_size=50):
    embeddings = []
    for batch in batches(docs, batch_size):
        inputs = {name: value.to("cuda") for name, value in tokenizer(batch).items()}
        embeddings_batch, _ = model(**inputs)
        embeddings.append(embeddings_batch)
    return torch.cat(embeddings)


def nearest(question, corpus, k=5):
    scores = corpus @ question / (np.linalg.norm(corpus, axis=1) * np.linalg.norm(question) + 1e-6)
    return np.argsort(-scores)[:k]


def main():
    docs = reviews(3000)
    tokenizer = Tokenizer()
    model = SentenceEncoder().to("cuda")
    model.eval()
    corpus = encode(model, tokenizer, docs).detach().cpu().numpy()
    question = encode(model, tokenizer, ["w17 w4 w2048"])[0].detach().cpu().numpy()
    print(corpus.shape, nearest(question, corpus))


if __name__ == "__main__":
    main()
