# jina-ai/jina-vdr#4; h100:4GiB
"""Pages of documents are ranked for questions by late interaction: each vector of a question seeks its best of a page."""

import argparse

import torch
from torch import nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence


class PageEncoder(nn.Module):
    """Pictures of pages to one vector of each patch."""

    def __init__(self, width=384, layers=4, dim=128):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        layer = nn.TransformerEncoderLayer(width, 6, 4 * width, batch_first=True, norm_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Linear(width, dim)

    def forward(self, pages):
        return F.normalize(self.out(self.layers(self.patches(pages).flatten(2).transpose(1, 2))), dim=-1)


class QueryEncoder(nn.Module):
    def __init__(self, words=30_000, width=384, layers=4, dim=128):
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 6, 4 * width, batch_first=True, norm_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Linear(width, dim)

    def forward(self, tokens):
        return F.normalize(self.out(self.layers(self.words(tokens))), dim=-1)


class Retriever:
    def __init__(self, device="cuda"):
        self.device = device
        self.pages, self.queries = PageEncoder().to(device).eval(), QueryEncoder().to(device).eval()

    @torch.no_grad()
    def forward_passages(self, passages, batch_size):
        results = []
        for start in range(0, len(passages), batch_size):
            batch = torch.stack([page() for page in passages[start : start + batch_size]]).to(self.device)
            results.extend(self.pages(batch).cpu().unbind())
        return results

    @torch.no_grad()
    def forward_queries(self, queries, batch_size):
        parts = [self.queries(part.to(self.device)).cpu() for part in queries.split(batch_size)]
        return list(torch.cat(parts).unbind())

    def get_scores(self, query_embeddings, passage_embeddings, batch_size=128):
        return self.score_multi_vector(query_embeddings, passage_embeddings)

    def score_multi_vector(self, qs, ps, batch_size=128):
        scores_list = []
        for i in range(0, len(qs), batch_size):
            scores_batch = []
            qs_batch = pad_sequence(qs[i : i + batch_size], batch_first=True, padding_value=0).to(self.device)
            for j in range(0, len(ps), batch_size):
                ps_batch = pad_sequence(ps[j : j + batch_size], batch_first=True, padding_value=0).to(self.device)
                scores_batch.append(torch.einsum("bnd,csd->bcns", qs_batch, ps_batch).max(dim=3)[0].sum(dim=2))
            scores_list.append(torch.cat(scores_batch, dim=1).cpu())
        return torch.cat(scores_list, dim=0)


parser = argparse.ArgumentParser()
parser.add_argument("--batch-query", type=int, default=64)
parser.add_argument("--batch-passage", type=int, default=8)
parser.add_argument("--batch-score", type=int, default=16)
arguments = parser.parse_args([])

retriever = Retriever()
pages = [lambda: torch.rand(3, 768, 576)] * 160
passages = retriever.forward_passages(pages, arguments.batch_passage)
queries = retriever.forward_queries(torch.randint(0, 30_000, (192, 32)), arguments.batch_query)
scores = retriever.get_scores(queries, passages, batch_size=arguments.batch_score)
print(scores.topk(5, dim=1).indices[:3])
