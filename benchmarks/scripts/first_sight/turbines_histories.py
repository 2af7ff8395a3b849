# mindsdb/lightwood#386; h100:3GiB
"""Learns to encode the histories of turbines' sensors with a recurrent autoencoder, for a table of features."""

import torch
from torch import nn


class GruDecoder(nn.Module):
    def __init__(self, channels, hidden):
        super().__init__()
        self.cell, self.output = nn.GRUCell(channels, hidden), nn.Linear(hidden, channels)

    def forward(self, x, state):
        state = self.cell(x, state)
        return self.output(state), state


class TimeSeriesEncoder:
    def __init__(self, channels=6, encoded=128, learning_rate=1e-3, device="cuda"):
        self.encoder = nn.GRUCell(channels, encoded).to(device)
        self.decoder = GruDecoder(channels, encoded).to(device)
        self.encoded, self.device, self.learning_rate = encoded, device, learning_rate
        self.low, self.high = None, None

    def _prepare_raw_data(self, histories):
        """Histories as one padded tensor on the host, scaled to 0..1, and their lengths."""
        data = nn.utils.rnn.pad_sequence(histories, batch_first=True)
        if self.low is None:
            self.low, self.high = data.amin((0, 1)), data.amax((0, 1))
        return (data - self.low) / (self.high - self.low + 1e-6), torch.tensor([len(h) for h in histories])

    def _get_batch(self, source, start, step):
        end = min(start + step, len(source))
        return source[start:end]

    def _encode(self, batch):
        state = torch.zeros(len(batch), self.encoded, device=self.device)
        for x in batch.unbind(1):
            state = self.encoder(x, state)
        return state

    def prepare(self, histories, epochs=2, batch_size=512):
        data, lengths = self._prepare_raw_data(histories)
        optimizer = torch.optim.AdamW([*self.encoder.parameters(), *self.decoder.parameters()], lr=self.learning_rate)
        for epoch in range(epochs):
            total, batches = 0.0, 0
            for start in range(0, len(data), batch_size):
                batch = self._get_batch(data, start, start + batch_size).to(self.device)
                rows = self._get_batch(lengths, start, start + batch_size).to(self.device)
                state, x, outputs = self._encode(batch), batch[:, 0], []
                for target in batch.unbind(1):
                    prediction, state = self.decoder(x, state)
                    outputs.append(prediction)
                    x = target
                mask = torch.arange(batch.shape[1], device=self.device) < rows[:, None]
                error = (torch.stack(outputs, 1) - batch).square().mean(-1)
                loss = (error * mask).sum() / mask.sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total, batches = total + loss.item(), batches + 1
            print(f"epoch {epoch}: {total / batches:.4f}")

    @torch.no_grad()
    def encode(self, histories, batch_size=512):
        data, _ = self._prepare_raw_data(histories)
        return torch.cat([self._encode(part.to(self.device)).cpu() for part in data.split(batch_size)])


def read_histories(turbines=20000, channels=6, longest=64):
    pool = torch.randn(turbines, longest, channels).cumsum(1)
    return [pool[i, : 32 + i % (longest - 31)] for i in range(turbines)]


histories = read_histories()
encoder = TimeSeriesEncoder()
encoder.prepare(histories, epochs=1)
print(encoder.encode(histories[:2048]).shape)
