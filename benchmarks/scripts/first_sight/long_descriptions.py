# flairNLP/flair#1638; h100:4GiB
"""Embeddings of 120 descriptions by a transformer, one after another, for a grouping by k-means."""

import torch
from torch import nn
from transformers import BertConfig, BertModel


class Sentence:
    def __init__(self, tokens):
        self.tokens, self._embeddings = tokens, {}

    def set_embedding(self, name, vector):
        self._embeddings[name] = vector

    def get_embedding(self):
        return torch.cat(list(self._embeddings.values()))

    def clear_embeddings(self):
        self._embeddings = {}


class TransformerDocumentEmbeddings(nn.Module):
    def __init__(self, config, fine_tune=True, batch_size=1):
        super().__init__()
        self.model, self.fine_tune, self.batch_size = BertModel(config).cuda(), fine_tune, batch_size
        self.name = "transformer-document"
        self.eval()

    def embed(self, sentences):
        sentences = [sentences] if isinstance(sentences, Sentence) else sentences
        with torch.set_grad_enabled(self.fine_tune):
            for start in range(0, len(sentences), self.batch_size):
                batch = sentences[start : start + self.batch_size]
                tokens = torch.stack([sentence.tokens for sentence in batch]).cuda()
                hidden = self.model(input_ids=tokens).last_hidden_state
                for sentence, states in zip(batch, hidden):
                    sentence.set_embedding(self.name, states[0])


def k_means(points, groups=8, steps=5):
    centres = points[:groups]
    for _ in range(steps):
        nearest = torch.cdist(points, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add(0, nearest, points)
        centres = sums / torch.bincount(nearest, minlength=groups).clamp(min=1)[:, None]
    return nearest


long_desc = [torch.randint(0, 30_000, (384,)) for _ in range(120)]
embeddings = TransformerDocumentEmbeddings(BertConfig(vocab_size=30_522, num_hidden_layers=8))
X = torch.empty(size=(len(long_desc), 768)).cuda()
for i, tokens in enumerate(long_desc):
    sentence = Sentence(tokens)
    embeddings.embed(sentence)
    X[i] = sentence.get_embedding()
    sentence.clear_embeddings()
print(k_means(X)[:10])
