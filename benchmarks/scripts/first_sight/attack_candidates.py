# QData/TextAttack#30; h100:4GiB
"""An attack on a classifier of texts: for each word of a text, many replacements are tried."""

import torch
from torch import nn
import torch.nn.functional as F


class Classifier(nn.Module):
    def __init__(self, vocabulary=30522, width=256, layers=4):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.encoder(x).mean(1))


class WordSwap:
    """All texts in which one word is another: candidates times words of them."""

    def __init__(self, candidates=48):
        self.candidates = candidates

    def __call__(self, text):
        length = len(text)
        texts = text.repeat(length, self.candidates, 1)
        words = torch.arange(length, device=text.device)
        texts[words, :, words] = torch.randint(0, 30522, (length, self.candidates), device=text.device)
        return texts.flatten(0, 1)


class GreedyWordSwap:
    def __init__(self, model, transformation):
        self.model, self.transformation = model, transformation

    @torch.no_grad()
    def call_model(self, texts):
        return F.softmax(self.model(texts), dim=-1)

    def attack_one(self, text, label, rounds=2):
        for _ in range(rounds):
            texts = self.transformation(text)
            scores = self.call_model(texts)[:, label]
            text = texts.index_select(0, scores.argmin(keepdim=True))[0]
        return text


attack = GreedyWordSwap(Classifier().cuda().eval(), WordSwap())
for length in (16, 48, 160):
    text = torch.randint(0, 30522, (length,), device="cuda")
    print(length, attack.attack_one(text, label=1).shape)
