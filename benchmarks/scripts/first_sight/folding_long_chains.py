# hpcaitech/FastFold#37; h100:4GiB
"""Predicts distances within protein chains with an Evoformer, for each sequence of a FASTA file."""

import torch
from torch import nn
from torch.nn import functional as F

SEQUENCES = {"T1024": 160, "T1050": 240, "H1044": 512}


class GlobalConfig:
    chunk_size = None
    c_m, c_z, heads = 128, 128, 4


def chunk_layer(layer, x, chunk_size):
    if chunk_size is None:
        return layer(x)
    return torch.cat([layer(part) for part in x.split(chunk_size)])


class GatedAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width, bias=False)
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def attend(self, x, bias):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for t in (q, k, v))
        logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        logits += bias
        weights = F.softmax(logits, -1)
        attended = (weights @ v).transpose(-2, -3).flatten(-2)
        return self.out(torch.sigmoid(self.gate(x)) * attended)

    def forward(self, x, bias, chunk_size):
        x = self.norm(x)
        return chunk_layer(lambda rows: self.attend(rows, bias), x, chunk_size)


class EvoformerBlock(nn.Module):
    def __init__(self, globals):
        super().__init__()
        self.globals = globals
        self.msa_bias = nn.Linear(globals.c_z, globals.heads, bias=False)
        self.starting_bias = nn.Linear(globals.c_z, globals.heads, bias=False)
        self.ending_bias = nn.Linear(globals.c_z, globals.heads, bias=False)
        self.msa_row = GatedAttention(globals.c_m, globals.heads)
        self.left, self.right = nn.Linear(globals.c_m, 12), nn.Linear(globals.c_m, 12)
        self.outer = nn.Linear(144, globals.c_z)
        self.starting, self.ending = GatedAttention(globals.c_z, globals.heads), GatedAttention(globals.c_z, globals.heads)
        self.transition = nn.Sequential(nn.LayerNorm(globals.c_z), nn.Linear(globals.c_z, 2 * globals.c_z), nn.ReLU(), nn.Linear(2 * globals.c_z, globals.c_z))

    def forward(self, m, z):
        size = self.globals.chunk_size
        m = m + self.msa_row(m, self.msa_bias(z).permute(2, 0, 1), size)
        outer = torch.einsum("sic,sjd->ijcd", self.left(m), self.right(m)) / len(m)
        z = z + self.outer(outer.flatten(-2))
        z = z + self.starting(z, self.starting_bias(z).permute(2, 0, 1), size)
        z = z.transpose(0, 1)
        z = z + self.ending(z, self.ending_bias(z).permute(2, 0, 1), size)
        z = z.transpose(0, 1)
        return m, z + chunk_layer(self.transition, z, size)


class AlphaFold(nn.Module):
    def __init__(self, blocks=3, bins=64):
        super().__init__()
        self.globals = GlobalConfig()
        self.msa_embedding = nn.Embedding(23, self.globals.c_m)
        self.position = nn.Embedding(65, self.globals.c_z)
        self.blocks = nn.ModuleList([EvoformerBlock(self.globals) for _ in range(blocks)])
        self.distogram = nn.Linear(self.globals.c_z, bins)

    def forward(self, msa):
        index = torch.arange(msa.shape[1], device=msa.device)
        m, z = self.msa_embedding(msa), self.position((index[:, None] - index).clamp(-32, 32) + 32)
        for block in self.blocks:
            m, z = block(m, z)
        return self.distogram(z + z.transpose(0, 1))


def inference(model, sequences, alignments=64):
    for tag, length in sequences.items():
        msa = torch.randint(0, 23, (alignments, length), device="cuda")
        with torch.no_grad():
            distances = model(msa).argmax(-1).to(torch.uint8).cpu()
        print(f"{tag}: {length} residues, distogram {tuple(distances.shape)}")


if __name__ == "__main__":
    torch.manual_seed(0)
    model = AlphaFold().cuda().eval()
    inference(model, SEQUENCES)
