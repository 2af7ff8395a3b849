# huggingface/transformers#33732; h100:3GiB
"""Transcribes long recordings in segments of 30 seconds, with the times of words from the attention of the decoder."""

import torch
from torch import nn


class DecoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, audio):
        attended, weights = self.attend(x, audio, audio, average_attn_weights=False)
        x = x + attended
        return x + self.mlp(x), weights


class Whisper(nn.Module):
    def __init__(self, width=512, heads=8, layers=8, words=8000):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(80, width, 3, padding=1), nn.Conv1d(width, width, 3, 2, padding=1)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4)
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.layers = nn.ModuleList([DecoderLayer(width, heads) for _ in range(layers)])

    def encode(self, features):
        return self.encoder(self.conv2(self.conv1(features).relu()).relu().transpose(1, 2))

    def generate_segment(self, features, length=50):
        audio = self.encode(features)
        token = torch.zeros(len(features), 1, dtype=torch.long, device="cuda")
        tokens, cross_attentions = [], []
        for _ in range(length):
            x, weights = self.words(token), []
            for layer in self.layers:
                x, weight = layer(x, audio)
                weights.append(weight)
            token = self.head(x).argmax(-1)
            tokens.append(token)
            cross_attentions.append(tuple(weights))
        return {"sequences": torch.cat(tokens, 1), "cross_attentions": cross_attentions}


def word_times(result, heads=((3, 1), (4, 2), (5, 3), (6, 6), (7, 0))):
    """The place of the largest weight of the alignment heads, for each token."""
    rows = [sum(weights[layer][:, head, 0] for layer, head in heads) for weights in result["cross_attentions"]]
    return torch.stack(rows, 1).argmax(-1).cpu() * 0.02


model = Whisper().cuda().half().eval()
segments = []
with torch.inference_mode():
    for start in range(0, 900, 30):
        features = torch.randn(16, 80, 3000).half().cuda()
        result = model.generate_segment(features)
        segments.append({"start": start, "tokens": result["sequences"].cpu(), "times": word_times(result), "result": result})
        print(start, len(segments))
print(torch.cat([segment["tokens"] for segment in segments], 1).shape)
