# control; h100:3GiB
"""Books are embedded in batches, and the nearest of them are found for questions, a block of books at a time."""

import torch
from torch import nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, words=30_000, width=512, layers=6, heads=8, length=256):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens):
        x = self.layers(self.words(tokens) + self.places.weight[: tokens.shape[1]])
        return F.normalize(x.mean(1), dim=-1)


@torch.inference_mode()
def embed(model, tokens, batch_size=128):
    result = torch.empty(len(tokens), 512, dtype=torch.float16)
    for start in range(0, len(tokens), batch_size):
        part = tokens[start : start + batch_size].cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            result[start : start + batch_size] = model(part).half().cpu()
    return result


@torch.inference_mode()
def search(questions, books, count=10, block=1024):
    questions = questions.cuda()
    scores = torch.full((len(questions), count), -1.0, device="cuda", dtype=torch.float16)
    places = torch.zeros(len(questions), count, device="cuda", dtype=torch.long)
    for start in range(0, len(books), block):
        found, where = (questions @ books[start : start + block].cuda().T).topk(count, dim=1)
        scores, order = torch.cat([scores, found], 1).topk(count, dim=1)
        places = torch.cat([places, where + start], 1).gather(1, order)
    return places.cpu()


model = Encoder().cuda().eval()
books = embed(model, torch.randint(0, 30_000, (4096, 256)))
questions = embed(model, torch.randint(0, 30_000, (512, 32)))
print(search(questions, books)[:3])
