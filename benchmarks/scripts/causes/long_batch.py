"""One batch far longer than all before (allenai/allennlp#2515); on 8GiB: long batch."""

import torch
from torch import nn

layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
encoder = nn.TransformerEncoder(layer, 6).cuda()
embed, tag = nn.Embedding(10000, 512).cuda(), nn.Linear(512, 50).cuda()
optimizer = torch.optim.Adam([*encoder.parameters(), *embed.parameters(), *tag.parameters()])
lengths = [40, 55, 32, 61, 48, 50, 37, 66, 52, 44, 1900]
for length in lengths:
    ids = torch.randint(0, 10000, (32, length), device="cuda")
    out = tag(encoder(embed(ids)))
    loss = nn.functional.cross_entropy(out.flatten(0, 1), torch.zeros(32 * length, dtype=torch.long, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
