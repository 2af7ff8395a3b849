# allenai/allennlp#3850; h100:8GiB
"""A text encoder is tuned to tell praise from blame in short reviews."""

import random

import torch
from torch import nn
import torch.nn.functional as F


class Tokenizer:
    def __init__(self, words=30_522, max_length=512, pad=0):
        self.words, self.max_length, self.pad = words, max_length, pad

    def encode(self, text):
        return [101] + [1000 + hash(word) % (self.words - 1000) for word in text.split()][: self.max_length - 2] + [102]

    def encode_batch(self, texts):
        """Token numbers and a mask, which is false where a text is filled up."""
        encoded = [self.encode(text) for text in texts]
        length = self.max_length
        tokens = torch.full((len(texts), length), self.pad)
        for row, numbers in zip(tokens, encoded):
            row[: len(numbers)] = torch.tensor(numbers)
        return tokens, tokens != self.pad


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, mask):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        x = self.norm1(x + self.out(attended.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.mlp(x))


class Classifier(nn.Module):
    def __init__(self, words=30_522, width=768, layers=12, heads=12, length=512, classes=2):
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(words, width), nn.Embedding(length, width), nn.LayerNorm(width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])
        self.pooler, self.head = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, tokens, mask):
        x = self.norm(self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)))
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(torch.tanh(self.pooler(x[:, 0])))


def load_reviews(count):
    vocabulary = ["good", "bad", "the", "film", "plot", "a", "was", "long", "and", "not", "actor", "music"]
    return [(" ".join(random.choices(vocabulary, k=random.randint(8, 90))), random.randint(0, 1)) for _ in range(count)]


tokenizer, reviews, size = Tokenizer(), load_reviews(160), 32
model = Classifier().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
for start in range(0, len(reviews), size):
    texts, labels = zip(*reviews[start : start + size])
    tokens, mask = tokenizer.encode_batch(texts)
    loss = F.cross_entropy(model(tokens.cuda(), mask.cuda()), torch.tensor(labels).cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(start, loss.item())
