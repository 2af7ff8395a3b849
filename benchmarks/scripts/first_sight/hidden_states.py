"""Hidden states of all layers returned, of which the last is used (Biohub/esm#173); on h100:8GiB: results kept."""

import torch
from torch import nn


class ProteinModel(nn.Module):
    def __init__(self, width=1280, layers=24):
        super().__init__()
        self.embed = nn.Embedding(64, width)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, 20, 4 * width, batch_first=True, norm_first=True) for _ in range(layers))
        self.head = nn.Linear(width, 64)

    def forward(self, tokens, return_hidden_states=True):
        x = self.embed(tokens)
        hidden_states = []
        for block in self.blocks:
            x = block(x)
            if return_hidden_states:
                hidden_states.append(x)
        stacked = torch.stack(hidden_states, dim=0) if return_hidden_states else None
        return self.head(x), x, stacked


model = ProteinModel().half().cuda().eval()
vectors = []
with torch.no_grad():
    for length in (256, 256, 512, 1024, 1024, 1024):
        tokens = torch.randint(0, 64, (56, length), device="cuda")
        logits, embedding, _ = model(tokens)
        vectors.append(embedding.mean(1).cpu())
print(len(vectors))
