# huggingface/sentence-transformers#3816; h100:4GiB
"""Mines hard negatives for pairs of questions and passages with a bi-encoder, and writes triplets to train with."""

import torch
from torch import nn
from torch.nn import functional as F


class BiEncoder(nn.Module):
    def __init__(self, vocabulary=30522, width=256, layers=3):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids):
        return self.encoder(self.tokens(ids)).mean(1)

    @torch.no_grad()
    def encode(self, ids, batch_size=512):
        return torch.cat([self(part.to("cuda")) for part in ids.split(batch_size)])

    def similarity(self, a, b):
        return F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T


class Pairs:
    def __init__(self, queries, passages, words=24):
        self.queries = torch.randint(1, 30522, (queries, 8))
        self.corpus = torch.randint(1, 30522, (passages, words))
        self.positive = torch.randint(0, passages, (queries,))

    def __len__(self):
        return len(self.queries)


def mine_hard_negatives(dataset, model, range_min=5, range_max=60, num_negatives=4, margin=0.05, batch_size=512):
    max_positives = 1
    query_embeddings = model.encode(dataset.queries, batch_size)
    corpus_embeddings = model.encode(dataset.corpus, batch_size)
    print(f"{len(query_embeddings)} queries, {len(corpus_embeddings)} passages")

    scores = model.similarity(query_embeddings, corpus_embeddings)
    scores, indices = torch.topk(scores, k=range_max + max_positives, dim=1)

    positive = dataset.positive.to(scores.device)
    positive_scores = F.cosine_similarity(query_embeddings, corpus_embeddings[positive])
    scores = scores.masked_fill(indices == positive[:, None], -torch.inf)
    scores = scores.masked_fill(scores > positive_scores[:, None] - margin, -torch.inf)
    scores, indices = scores[:, range_min:], indices[:, range_min:]
    scores, order = scores.topk(num_negatives, dim=1)
    negatives = indices.gather(1, order)
    return {
        "query": torch.arange(len(dataset)),
        "positive": dataset.positive,
        "negatives": negatives.cpu(),
        "valid": scores.isfinite().cpu(),
    }


def main():
    torch.manual_seed(0)
    model = BiEncoder().cuda().eval()
    triplets = mine_hard_negatives(Pairs(queries=20_000, passages=60_000), model)
    print(f"{triplets['negatives'].numel()} candidates for {len(triplets['query'])} queries")
    torch.save(triplets, "/dev/null")


if __name__ == "__main__":
    main()
