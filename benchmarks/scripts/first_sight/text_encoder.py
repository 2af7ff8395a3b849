"""A text encoder that stays on the GPU after the prompts were encoded (Lightricks/LTX-Video#23); on h100:6GiB: model not used any more."""

import torch
from torch import nn


def transformer(width, layers):
    layer = lambda: nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True, device="cuda", dtype=torch.half)
    return nn.Sequential(*[layer() for _ in range(layers)]).eval()


class Pipeline:
    def __init__(self):
        self.embed = nn.Embedding(32000, 2048, device="cuda", dtype=torch.half)
        self.text_encoder = transformer(2048, 22)
        self.denoiser = transformer(2048, 20)
        self.patchify = nn.Linear(128, 2048, device="cuda", dtype=torch.half)
        self.unpatchify = nn.Linear(2048, 128, device="cuda", dtype=torch.half)

    @torch.no_grad()
    def encode(self, prompts):
        return self.text_encoder(self.embed(prompts))

    @torch.no_grad()
    def __call__(self, prompts, frames=40, steps=10):
        context = self.encode(prompts)
        latents = torch.randn(len(prompts), frames * 1024, 128, device="cuda", dtype=torch.half)
        for _ in range(steps):
            x = torch.cat([context, self.patchify(latents)], dim=1)
            latents = latents - 0.1 * self.unpatchify(self.denoiser(x)[:, context.shape[1] :])
        return latents.cpu()


pipeline = Pipeline()
print(pipeline(torch.zeros(1, 128, dtype=torch.long, device="cuda")).shape)
