# kyutai-labs/pocket-tts#16; h100:3GiB
"""Speech from texts: a thread makes latents one after another, the main thread decodes them to samples."""

import queue
import threading

import torch
from torch import nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, state, step):
        q, k, v = self.qkv(self.norm1(x)).view(len(x), 1, 3, self.heads, -1).transpose(1, 3).unbind(2)
        state[0][:, :, step : step + 1], state[1][:, :, step : step + 1] = k, v
        attended = F.scaled_dot_product_attention(q, state[0][:, :, : step + 1], state[1][:, :, : step + 1])
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class SpeechModel(nn.Module):
    def __init__(self, width=1024, layers=6, heads=16, latent=32):
        super().__init__()
        self.inlet, self.outlet = nn.Linear(latent, width), nn.Linear(width, latent)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])
        self.decoder = nn.Sequential(nn.ConvTranspose1d(latent, 64, 16, 8), nn.ELU(), nn.ConvTranspose1d(64, 1, 480, 240))

    def next_latent(self, latent, states, step):
        x = self.inlet(latent)
        for layer, state in zip(self.layers, states):
            x = layer(x, state, step)
        return self.outlet(x)

    def make_latents(self, texts, steps, latents):
        try:
            states = [[torch.zeros(texts, 16, steps, 64, device="cuda") for _ in range(2)] for _ in self.layers]
            latent = torch.zeros(texts, 1, 32, device="cuda")
            for step in range(steps):
                latent = self.next_latent(latent, states, step)
                latents.put(latent)
            latents.put(None)
        except Exception as error:
            latents.put(error)

    @torch.no_grad()
    def generate(self, texts=64, steps=200):
        latents = queue.Queue()
        threading.Thread(target=self.make_latents, args=(texts, steps, latents), daemon=True).start()
        samples = []
        while (latent := latents.get()) is not None:
            if isinstance(latent, Exception):
                raise latent
            samples.append(self.decoder(latent.transpose(1, 2)).cpu())
        return torch.cat(samples, -1)


model = SpeechModel().cuda().eval()
print(model.generate().shape)
