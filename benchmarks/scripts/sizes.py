"""Programs that train at any batch size and any size of a sample: `sizes.py NAME --batch-size 8 --size 64`.

A sample's size is its tokens, the side of its picture, or its number of points.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

Step = Callable[[], Tensor]
Made = tuple[nn.Module, Step]
V, W = 1003, 96


def ids(batch: int, size: int, most: int = V) -> Tensor:
    """Random token ids [batch, size]."""
    return torch.randint(most, (batch, size), device="cuda")


def noise(*shape: int) -> Tensor:
    """Random numbers."""
    return torch.randn(*shape, device="cuda")


class Attention(nn.Module):
    """A block of a transformer, with torch's fused attention or with the matrix of all pairs."""

    def __init__(self, is_fused: bool = True) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(W), nn.Linear(W, 3 * W), nn.Linear(W, W)
        self.mlp = nn.Sequential(nn.LayerNorm(W), nn.Linear(W, 4 * W), nn.GELU(), nn.Linear(4 * W, W))
        self.is_fused = is_fused

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, W] to the same."""
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        if self.is_fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-1, -2)).masked_fill(
                torch.ones(x.shape[1], x.shape[1], device="cuda").triu(1) > 0, -9
            )
            mixed = F.dropout(scores.softmax(-1), 0.1) @ v
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Language(nn.Module):
    """Token ids to logits."""

    def __init__(self, block: Callable[[], nn.Module] = Attention, depth: int = 3) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(V, W), nn.Linear(W, V)
        self.blocks = nn.ModuleList(block() for _ in range(depth))
        self.way = "plain"

    def forward(self, x: Tensor) -> Tensor:
        """[B, T] to [B, T, V]."""
        x = self.embed(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.way == "checkpoint" else block(x)
        return self.head(x)


def language_loss(net: nn.Module, batch: int, size: int) -> Tensor:
    """Cross entropy of random tokens."""
    return F.cross_entropy(net(ids(batch, size)).flatten(0, 1), ids(batch, size).flatten())


def transformer(batch: int, size: int) -> Made:
    net = Language().cuda()
    return net, lambda: language_loss(net, batch, size)


def attention_matrix(batch: int, size: int) -> Made:
    net = Language(lambda: Attention(False)).cuda()
    return net, lambda: language_loss(net, batch, size)


def checkpointed(batch: int, size: int) -> Made:
    net = Language(depth=6).cuda()
    net.way = "checkpoint"
    return net, lambda: language_loss(net, batch, size)


def bfloat16(batch: int, size: int) -> Made:
    net = Language().cuda()

    def step() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return language_loss(net, batch, size)

    return net, step


def compiled(batch: int, size: int) -> Made:
    net = Language().cuda()
    quick = torch.compile(net)
    return net, lambda: language_loss(quick, batch, size)


def accumulation(batch: int, size: int) -> Made:
    net = Language().cuda()

    def step() -> Tensor:
        for _ in range(3):
            language_loss(net, batch, size).backward()
        return language_loss(net, batch, size)

    return net, step


def loss_in_chunks(batch: int, size: int) -> Made:
    net = Language().cuda()

    def part(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(net.head(x), y, reduction="sum")

    def step() -> Tensor:
        x = net.embed(ids(batch, size))
        for block in net.blocks:
            x = block(x)
        pieces = zip(x.flatten(0, 1).chunk(4), ids(batch, size).flatten().chunk(4), strict=True)
        return sum((checkpoint(part, *piece, use_reentrant=False) for piece in pieces), torch.zeros((), device="cuda"))

    return net, step


def encoder(batch: int, size: int) -> Made:
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(W, 4, 4 * W, batch_first=True), 2).cuda()
    return net, lambda: net(noise(batch, size, W)).square().mean()


def seq2seq(batch: int, size: int) -> Made:
    net = nn.Transformer(W, 4, 2, 2, 4 * W, batch_first=True).cuda()
    return net, lambda: net(noise(batch, size, W), noise(batch, size // 2 + 1, W)).square().mean()


def gpt2(batch: int, size: int) -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    net = GPT2LMHeadModel(GPT2Config(vocab_size=V, n_positions=2048, n_embd=W, n_layer=3, n_head=4)).cuda()

    def step() -> Tensor:
        tokens = ids(batch, size)
        return net(tokens, labels=tokens).loss

    return net, step


def llama(batch: int, size: int) -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    net = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=V, hidden_size=W, intermediate_size=4 * W, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2,
        )
    ).cuda()  # fmt: skip

    def step() -> Tensor:
        tokens = ids(batch, size)
        return net(tokens, labels=tokens).loss

    return net, step


def bert(batch: int, size: int) -> Made:
    from transformers import BertConfig, BertForSequenceClassification

    net = BertForSequenceClassification(
        BertConfig(
            vocab_size=V, hidden_size=W, num_hidden_layers=2, num_attention_heads=4, intermediate_size=4 * W,
            max_position_embeddings=2048,
        )
    ).cuda()  # fmt: skip
    return net, lambda: net(ids(batch, size), labels=ids(batch, 1, 2).flatten()).loss


def lstm(batch: int, size: int) -> Made:
    net = nn.LSTM(W, 2 * W, 2, batch_first=True, dropout=0.1).cuda()
    return net, lambda: net(noise(batch, size, W))[0].square().mean()


def gru_cells(batch: int, size: int) -> Made:
    net = nn.GRUCell(W, W).cuda()

    def step() -> Tensor:
        state = noise(batch, W)
        for x in noise(8, batch, W):
            state = net(x, state)
        return state.square().mean() + noise(batch, size).mean()

    return net, step


def convolutions(batch: int, size: int) -> Made:
    layers = [
        nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))
        for a, b in ((3, 32), (32, 64), (64, 128))
    ]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)).cuda()
    return net, lambda: F.cross_entropy(net(noise(batch, 3, size, size)), ids(batch, 1, 10).flatten())


def resnet(batch: int, size: int) -> Made:
    net = torchvision.models.resnet18(num_classes=10).cuda()
    return net, lambda: F.cross_entropy(net(noise(batch, 3, size, size)), ids(batch, 1, 10).flatten())


def mobilenet(batch: int, size: int) -> Made:
    net = torchvision.models.mobilenet_v3_small(num_classes=10).cuda()
    return net, lambda: F.cross_entropy(net(noise(batch, 3, size, size)), ids(batch, 1, 10).flatten())


class UNet(nn.Module):
    """Two levels, joined by what skips between them."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.inner = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(64, 32, 2, 2), nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Pictures to pictures, of an even side."""
        x = F.pad(x, (0, x.shape[-1] % 2, 0, x.shape[-1] % 2))
        skip = self.down(x).relu()
        inner = self.inner(F.max_pool2d(skip, 2)).relu()
        return self.out(torch.cat([skip, self.up(inner)], 1))


def unet(batch: int, size: int) -> Made:
    net = UNet().cuda()
    return net, lambda: net(noise(batch, 3, size, size)).square().mean()


def upsampling(batch: int, size: int) -> Made:
    net = nn.Sequential(nn.Conv2d(3, 21, 3, 2, 1), nn.GroupNorm(7, 21), nn.SiLU()).cuda()

    def step() -> Tensor:
        logits = F.interpolate(net(noise(batch, 3, size, size)), size=(size, size), mode="bilinear")
        return F.cross_entropy(logits, ids(batch, size * size, 21).view(batch, size, size))

    return net, step


def vision_transformer(batch: int, size: int) -> Made:
    patches = nn.Conv2d(3, W, 16, 16)
    net = nn.Sequential(patches, nn.Flatten(2), Transposed(), Attention(), Attention()).cuda()
    side = 16 * max(1, size // 16)
    return net, lambda: net(noise(batch, 3, side, side)).square().mean()


class Transposed(nn.Module):
    """Swap the last two axes."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, N] to [B, N, C]."""
        return x.transpose(1, 2)


def fno(batch: int, size: int) -> Made:
    from neuralop.models import FNO

    net = FNO(n_modes=(8, 8), in_channels=1, out_channels=1, hidden_channels=16, n_layers=2).cuda()
    return net, lambda: net(noise(batch, 1, size, size)).square().mean()


def autoencoder(batch: int, size: int) -> Made:
    net = nn.Sequential(nn.Linear(W, 512), nn.ReLU(), nn.Linear(512, 16), nn.ReLU(), nn.Linear(16, W)).cuda()

    def step() -> Tensor:
        x = noise(batch * size, W)
        return F.mse_loss(net(x), x)

    return net, step


def adversarial(batch: int, size: int) -> Made:
    make = nn.Sequential(nn.Linear(W, 256), nn.ReLU(), nn.Linear(256, W)).cuda()
    judge = nn.Sequential(nn.Linear(W, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
    net = nn.ModuleList([make, judge])

    def step() -> Tensor:
        fake = make(noise(batch * size, W))
        real = judge(noise(batch * size, W))
        return F.softplus(-real).mean() + F.softplus(judge(fake.detach())).mean() + F.softplus(-judge(fake)).mean()

    return net, step


def contrastive(batch: int, size: int) -> Made:
    net = nn.Sequential(nn.Linear(W, W), nn.ReLU(), nn.Linear(W, W)).cuda()

    def step() -> Tensor:
        a, b = F.normalize(net(noise(batch * 8, W))), F.normalize(net(noise(batch * 8, W)))
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(batch * 8, device="cuda")) + noise(batch, size).mean()

    return net, step


def pair_distances(batch: int, size: int) -> Made:
    net = nn.Linear(3, 16).cuda()

    def step() -> Tensor:
        points = net(noise(batch, size, 3))
        return (points[:, :, None] - points[:, None]).square().sum(-1).add(1).sqrt().mean()

    return net, step


def graph(batch: int, size: int) -> Made:
    net = nn.Linear(W, W).cuda()

    def step() -> Tensor:
        nodes, edges = noise(batch * size, W), ids(2, 4 * batch * size, batch * size)
        messages = net(nodes[edges[0]]).relu()
        return torch.zeros_like(nodes).index_add(0, edges[1], messages).square().mean()

    return net, step


def recommender(batch: int, size: int) -> Made:
    net = nn.ModuleList([nn.EmbeddingBag(5000, W) for _ in range(4)] + [nn.Linear(4 * W, 1)]).cuda()

    def step() -> Tensor:
        x = torch.cat([net[table](ids(batch, size, 5000)) for table in range(4)], 1)
        return F.binary_cross_entropy_with_logits(net[4](x), torch.ones(batch, 1, device="cuda"))

    return net, step


def experts(batch: int, size: int) -> Made:
    net = nn.ModuleList([nn.Linear(W, 4), *(nn.Linear(W, W) for _ in range(4))]).cuda()

    def step() -> Tensor:
        x = noise(batch * size, W)
        weights, chosen = net[0](x).softmax(-1).topk(2)
        total = torch.zeros_like(x)
        for number in range(4):
            share = (weights * (chosen == number)).sum(-1, keepdim=True)
            total = total + share * net[1 + number](x).relu()
        return total.square().mean()

    return net, step


def wave(batch: int, size: int) -> Made:
    net = nn.Sequential(*(nn.Conv1d(16, 16, 3, padding=2**n, dilation=2**n) for n in range(4))).cuda()
    return net, lambda: net(noise(batch, 16, 16 * size)).square().mean()


def segments(batch: int, size: int) -> Made:
    net = nn.Sequential(*(nn.Sequential(nn.Linear(W, W), nn.Tanh()) for _ in range(8))).cuda()
    return net, lambda: checkpoint_sequential(net, 4, noise(batch, size, W), use_reentrant=False).square().mean()


def mixed_lengths(batch: int, size: int) -> Made:
    net = Language(depth=2).cuda()
    generator = torch.Generator().manual_seed(0)

    def step() -> Tensor:
        length = int(torch.randint(size // 2 + 1, size + 1, (), generator=generator))
        return language_loss(net, batch, length)

    return net, step


def penalty(batch: int, size: int) -> Made:
    net = nn.Sequential(nn.Linear(W, 256), nn.Softplus(), nn.Linear(256, 1)).cuda()

    def step() -> Tensor:
        x = noise(batch * size, W).requires_grad_()
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()

    return net, step


PROGRAMS: dict[str, Callable[[int, int], Made]] = {
    program.__name__: program
    for program in (
        transformer, attention_matrix, checkpointed, bfloat16, compiled, accumulation, loss_in_chunks, encoder, seq2seq,
        gpt2, llama, bert, lstm, gru_cells, convolutions, resnet, mobilenet, unet, upsampling, vision_transformer, fno,
        autoencoder, adversarial, contrastive, pair_distances, graph, recommender, experts, wave, segments,
        mixed_lengths, penalty,
    )
}  # fmt: skip


def main() -> None:
    """Train one for some steps."""
    options = argparse.ArgumentParser()
    options.add_argument("name", choices=PROGRAMS)
    options.add_argument("--batch-size", type=int, default=8)
    options.add_argument("--size", type=int, default=64)
    asked = options.parse_args()
    torch.manual_seed(0)
    net, step = PROGRAMS[asked.name](asked.batch_size, asked.size)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4)
    for _ in range(12):
        step().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
