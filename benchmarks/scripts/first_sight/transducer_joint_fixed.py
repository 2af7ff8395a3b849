"""A joint network over padded lengths (espnet/espnet#3081); on h100:8GiB: padding."""

import torch
from torch import nn


class Transducer(nn.Module):
    def __init__(self, width=512, vocabulary=1024):
        super().__init__()
        self.encoder = nn.LSTM(80, width, 2, batch_first=True)
        self.embed = nn.Embedding(vocabulary, width)
        self.predictor = nn.LSTM(width, width, batch_first=True)
        self.joint = nn.Linear(width, vocabulary)

    def forward(self, audio, text, frames, labels):
        encoded, _ = self.encoder(audio)
        predicted, _ = self.predictor(self.embed(text))
        pairs = list(zip(frames, labels))
        joined = torch.cat([(encoded[i, :t, None] + predicted[i, None, :u]).flatten(0, 1) for i, (t, u) in enumerate(pairs)])
        logits = self.joint(torch.tanh(joined))
        scores = logits.log_softmax(-1)
        targets = torch.cat([text[i, :u].repeat(t) for i, (t, u) in enumerate(pairs)])
        return -(scores[:, 0] + scores.gather(-1, targets[:, None])[:, 0]).sum() / len(frames)


model = Transducer().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(5):
    frames = [100 + 20 * i for i in range(16)]
    labels = [25 + 5 * i for i in range(16)]
    audio = torch.randn(16, max(frames), 80, device="cuda")
    text = torch.zeros(16, max(labels), dtype=torch.long, device="cuda")
    loss = model(audio, text, frames, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
