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
        logits = self.joint(torch.tanh(encoded[:, :, None] + predicted[:, None]))
        scores = logits.log_softmax(-1)
        blank = scores[..., 0]
        label = scores.gather(-1, text[:, None, :, None].expand(*scores.shape[:3], 1))[..., 0]
        t, u = (torch.tensor(n, device="cuda")[:, None] for n in (frames, labels))
        valid = (torch.arange(scores.shape[1], device="cuda") < t)[:, :, None] & (torch.arange(scores.shape[2], device="cuda") < u)[:, None]
        return -((blank + label) * valid).sum() / len(frames)


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
