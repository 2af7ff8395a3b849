# pytorch/pytorch#41954; h100:4GiB
"""A language model trained with DistributedDataParallel, here with one process."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import torch.nn.functional as F


class Roberta(nn.Module):
    def __init__(self, vocabulary=20000, width=1280, layers=8, heads=16):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        return self.head(self.encoder(self.words(tokens))[:, 0])


def main():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with torch.device("cuda"):
        model = Roberta()
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, foreach=False)
    for step in range(4):
        tokens = torch.randint(0, 20000, (4, 64), device="cuda")
        labels = torch.randint(0, 2, (4,), device="cuda")
        loss = F.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, torch.cuda.memory_allocated() >> 20)
    dist.destroy_process_group()


main()
