# gasteigerjo/gdc#11; h100:6GiB
"""A graph network says the subjects of papers; first, citations are replaced by the papers that personalised PageRank finds near."""

import torch
from torch import nn
import torch.nn.functional as F


def load_papers(papers=19_717, words=500, citations=44_324, classes=3):
    features = (torch.rand(papers, words) < 0.1).float()
    edges = torch.randint(0, papers, (2, citations))
    return features.cuda(), torch.cat([edges, edges.flip(0)], 1).cuda(), torch.randint(0, classes, (papers,)).cuda()


def transition_matrix(edges, papers):
    """Symmetrically normalised adjacency with a loop at each paper."""
    loops = torch.arange(papers, device=edges.device).expand(2, -1)
    edges = torch.cat([edges, loops], 1)
    scale = torch.zeros(papers, device=edges.device).index_add_(0, edges[0], torch.ones(edges.shape[1], device=edges.device)).rsqrt()
    return torch.sparse_coo_tensor(edges, scale[edges[0]] * scale[edges[1]], (papers, papers), check_invariants=False)


def diffuse(transition, alpha, neighbours):
    """The nearest neighbours of each paper by PageRank, and how near they are."""
    papers = transition.shape[0]
    system = torch.eye(papers, device=transition.device) - (1 - alpha) * transition.to_dense()
    ppr = alpha * torch.linalg.inv(system)
    return ppr.topk(neighbours, dim=1)


def neighbour_graph(values, columns):
    papers, neighbours = columns.shape
    rows = torch.arange(papers, device=columns.device)[:, None].expand(-1, neighbours)
    values = values / values.sum(1, keepdim=True)
    return torch.sparse_coo_tensor(torch.stack([rows.flatten(), columns.flatten()]), values.flatten(), (papers, papers), check_invariants=False)


class GCN(nn.Module):
    def __init__(self, words, hidden, classes):
        super().__init__()
        self.first, self.second = nn.Linear(words, hidden), nn.Linear(hidden, classes)

    def forward(self, x, adjacency):
        x = F.relu(torch.sparse.mm(adjacency, self.first(F.dropout(x, 0.5, self.training))))
        return torch.sparse.mm(adjacency, self.second(F.dropout(x, 0.5, self.training)))


features, edges, subjects = load_papers()
adjacency = neighbour_graph(*diffuse(transition_matrix(edges, len(features)), alpha=0.05, neighbours=64))
model = GCN(features.shape[1], hidden=64, classes=3).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(20):
    loss = F.cross_entropy(model(features, adjacency)[:60], subjects[:60])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
