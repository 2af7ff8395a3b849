# maum-ai/voicefilter#4; h100:4GiB
"""Takes the voice of one speaker out of recordings of several, with a mask that a trained network makes."""

import torch
from torch import nn


class SpeechEmbedder(nn.Module):
    def __init__(self, mels=40, width=768, embedding=256):
        super().__init__()
        self.lstm, self.proj = nn.LSTM(mels, width, num_layers=3, batch_first=True), nn.Linear(width, embedding)

    def forward(self, mel):
        windows = mel.unfold(1, 80, 40).permute(0, 1, 3, 2).flatten(0, 1)
        embedding = self.proj(self.lstm(windows)[0][:, -1])
        return nn.functional.normalize(embedding, dim=1).mean(0, keepdim=True)


class VoiceFilter(nn.Module):
    def __init__(self, frequencies=601, channels=64, embedding=256, lstm=400):
        super().__init__()

        def block(i, o, size, dilation=(1, 1)):
            padding = tuple(d * (s - 1) // 2 for s, d in zip(size, dilation))
            return nn.Sequential(nn.Conv2d(i, o, size, dilation=dilation, padding=padding), nn.BatchNorm2d(o), nn.ReLU())

        self.conv = nn.Sequential(
            block(1, channels, (1, 7)),
            block(channels, channels, (7, 1)),
            *[block(channels, channels, (5, 5), (2**k, 1)) for k in range(5)],
            block(channels, 8, (1, 1)),
        )
        self.lstm = nn.LSTM(8 * frequencies + embedding, lstm, batch_first=True, bidirectional=True)
        self.fc1, self.fc2 = nn.Linear(2 * lstm, 600), nn.Linear(600, frequencies)

    def forward(self, magnitude, embedding):
        x = self.conv(magnitude.unsqueeze(1)).transpose(1, 2).flatten(2)
        x = torch.cat([x, embedding.unsqueeze(1).expand(-1, x.shape[1], -1)], 2)
        x = self.fc1(self.lstm(x)[0].relu()).relu()
        return self.fc2(x).sigmoid()


def load_pair(seconds):
    """The mixed recording as magnitude and phase, and the reference of the speaker as mel spectrum."""
    frames = 100 * seconds
    return torch.rand(1, frames, 601), torch.rand(1, frames, 601), torch.rand(1, 1100, 40)


embedder, model = SpeechEmbedder().cuda().eval(), VoiceFilter().cuda().eval()
for name, seconds in (("interview", 12), ("meeting", 30), ("lecture", 24)):
    magnitude, phase, reference = load_pair(seconds)
    dvec = embedder(reference.cuda())
    magnitude = magnitude.cuda()
    mask = model(magnitude, dvec)
    estimate = (magnitude * mask).detach().cpu()
    wave = torch.polar(estimate, phase).abs().mean(-1)
    print(name, seconds, wave.shape)
