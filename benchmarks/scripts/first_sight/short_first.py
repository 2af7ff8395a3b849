# rapidsai/crossfit#18; h100:5GiB
"""Embeddings of passages that are sorted by length, so that a batch has little padding."""

import torch
from torch import nn


class SortedSeqLoader:
    """Batches of passages of similar length, as many tokens in each as a batch of the longest has."""

    def __init__(self, lengths, batch_size):
        self.lengths, self.batch_size = sorted(lengths), batch_size

    def __iter__(self):
        for start in range(0, len(self.lengths), self.batch_size):
            length = self.lengths[min(start + self.batch_size, len(self.lengths)) - 1]
            yield torch.randint(0, 30522, (self.batch_size, length), device="cuda")


class MiniLM(nn.Module):
    def __init__(self, width=384, layers=6):
        super().__init__()
        self.words = nn.Embedding(30522, width)
        layer = nn.TransformerEncoderLayer(width, 12, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens):
        return self.encoder(self.words(tokens)).mean(1)


model = MiniLM().cuda().eval()
lengths = [16 + 4 * (i // 1024) for i in range(1024 * 60)]
vectors = []
with torch.no_grad():
    for tokens in SortedSeqLoader(lengths, batch_size=1024):
        vectors.append(model(tokens))
        print(tokens.shape[1], torch.cuda.memory_allocated() >> 20, torch.cuda.memory_reserved() >> 20)
print(torch.cat(vectors).shape)
