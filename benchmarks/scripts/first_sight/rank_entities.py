# pykeen/pykeen#119; h100:3GiB
"""Embeddings of a knowledge graph are trained with sampled negatives and evaluated by the rank of the true entity."""

import torch
from torch import nn
import torch.nn.functional as F


class RotatE(nn.Module):
    def __init__(self, entities, relations, dim=128):
        super().__init__()
        self.entities = nn.Embedding(entities, 2 * dim)
        self.relations = nn.Embedding(relations, dim)

    def entity(self, index):
        return torch.view_as_complex(self.entities(index).unflatten(-1, (-1, 2)))

    def interaction(self, h, r, t):
        rotated = h * torch.polar(torch.ones_like(r), r)
        return -torch.linalg.vector_norm(rotated - t, dim=-1)

    def score_hrt(self, triples):
        h, r, t = triples.unbind(-1)
        return self.interaction(self.entity(h), self.relations(r), self.entity(t))

    def score_t(self, pairs):
        everything = torch.arange(self.entities.num_embeddings, device=pairs.device)
        h, r = self.entity(pairs[:, 0]), self.relations(pairs[:, 1])
        return self.interaction(h[:, None], r[:, None], self.entity(everything)[None])


def corrupted(triples, entities, negatives=8):
    broken = triples[:, None].repeat(1, negatives, 1)
    broken[..., 2] = torch.randint(0, entities, broken.shape[:2], device="cuda")
    return broken


@torch.no_grad()
def evaluate(model, triples, batch_size=64):
    ranks = []
    for batch in triples.split(batch_size):
        scores = model.score_t(batch[:, :2])
        true = scores.gather(1, batch[:, 2:])
        ranks.append((scores > true).sum(1) + 1)
    return (1 / torch.cat(ranks).float()).mean().item()


def triples(count):
    return torch.stack([torch.randint(0, n, (count,), device="cuda") for n in (40_000, 28, 40_000)], 1)


model = RotatE(40_000, 28).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(5):
    batch = triples(4096)
    positive, negative = model.score_hrt(batch), model.score_hrt(corrupted(batch, 40_000))
    loss = -F.logsigmoid(9 + positive).mean() - F.logsigmoid(-9 - negative).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
model.eval()
print("mean reciprocal rank", evaluate(model, triples(512)))
