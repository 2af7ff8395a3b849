# control; h100:3GiB
"""Evaluates a captioning model: pictures are encoded, captions are decoded greedily, results go to the host."""

import torch
from torch import nn


class Captioner(nn.Module):
    def __init__(self, words=16_000, width=768):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        layer = nn.TransformerEncoderLayer(width, 12, 4 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.embed = nn.Embedding(words, width)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(width, 12, 4 * width, batch_first=True, norm_first=True), 6)
        self.head = nn.Linear(width, words)

    def encode(self, pictures):
        return self.encoder(self.patches(pictures).flatten(2).transpose(1, 2))

    def next_word(self, tokens, memory):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.decoder(self.embed(tokens), memory, tgt_mask=mask)[:, -1]).argmax(-1)


model = Captioner().cuda().eval()
captions = []
with torch.inference_mode():
    for batch in range(6):
        pictures = torch.rand(96, 3, 224, 224).cuda()
        memory = model.encode(pictures)
        tokens = torch.zeros(len(pictures), 1, dtype=torch.long, device="cuda")
        for _ in range(16):
            tokens = torch.cat([tokens, model.next_word(tokens, memory)[:, None]], 1)
        captions.extend(tokens.cpu())
        print(batch, len(captions))
