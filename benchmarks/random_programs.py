"""Programs drawn at random over torch.nn: a chain of layers, an optimizer, a precision; the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.truth.program import Batch, Program

OPTIMIZERS = ("adamw", "adam", "sgd", "sgd", *["rmsprop"] * 7, "adamw", "adamw", "adamw")
"""Optimizers, as often as each is drawn."""


class _Applied(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor], name: str) -> None:
        super().__init__()
        self.function, self.name = function, name

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def extra_repr(self) -> str:
        return self.name


class _Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.inner(x)
        return result


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, is_causal: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.is_causal = heads, is_causal

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        result: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return result


Layer = Callable[[random.Random, int], tuple[nn.Module, int]]
"""From a width to a layer and its result's width."""


def _same(make: Callable[[int], nn.Module]) -> Layer:
    return lambda draw, width: (make(width), width)


def _linear(draw: random.Random, width: int) -> tuple[nn.Module, int]:
    wide = draw.choice([128, 256, 384, 512, 1000])
    return nn.Linear(width, wide, bias=draw.random() < 0.7), wide


_POINTWISE: tuple[Layer, ...] = tuple(
    _same(lambda width, kind=kind: kind())  # type: ignore[misc]
    for kind in (
        nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Softplus, nn.Hardswish, nn.Mish,
        nn.Hardtanh, nn.LogSigmoid, nn.Softsign, nn.Tanhshrink, nn.PReLU, nn.Dropout, nn.Identity, nn.SELU, nn.CELU,
    )
)  # fmt: skip


def _function(name: str, function: Callable[[Tensor], Tensor]) -> Layer:
    return _same(lambda width: _Applied(function, name))


_FUNCTIONS: tuple[Layer, ...] = (
    _function("softmax", lambda x: x.softmax(-1)),
    _function("log_softmax", lambda x: x.log_softmax(-1)),
    _function("cumsum", lambda x: x.cumsum(-1)),
    _function("square", lambda x: x * x),
    _function("normalize", lambda x: nn.functional.normalize(x, dim=-1)),
    _function("less max", lambda x: x - x.max(-1, keepdim=True).values),
    _function("sorted", lambda x: x.sort(-1).values),
    _function("less median", lambda x: x - x.median(-1, keepdim=True).values),
    _function("roll", lambda x: x.roll(1, -1)),
    _function("flip", lambda x: x.flip(-1)),
    _function("clamp", lambda x: x.clamp(-1, 1)),
    _function("where", lambda x: torch.where(x > 0, x, 0.1 * x)),
    _function("masked_fill", lambda x: x.masked_fill(x < 0, 0.0)),
    _function("less mean", lambda x: x - x.mean(-1, keepdim=True)),
    _function("by std", lambda x: x / (x.std(-1, keepdim=True) + 1)),
    _function("logsumexp", lambda x: x - x.logsumexp(-1, keepdim=True)),
)
_FLAT: tuple[Layer, ...] = (
    _linear,
    _linear,
    _same(nn.LayerNorm),
    _same(nn.RMSNorm),
    _same(nn.BatchNorm1d),
    _same(lambda width: _Residual(nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)))),
)
_SEQUENCE: tuple[Layer, ...] = (
    _linear,
    _same(nn.LayerNorm),
    _same(nn.RMSNorm),
    _same(lambda width: _Residual(_Attention(width - width % 8, 8, is_causal=True)) if width % 64 == 0 else nn.SiLU()),
    _same(lambda width: _Residual(_Attention(width, 4, is_causal=False)) if width % 32 == 0 else nn.SiLU()),
    _same(
        lambda width: (
            nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, norm_first=width > 256)
            if width % 32 == 0
            else nn.Tanh()
        )
    ),
)


class _Recurrent(nn.Module):
    """The output of recurrent layers, and nothing of their last state."""

    def __init__(self, layers: nn.RNNBase) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)[0]
        return result


def _recurrent(draw: random.Random, width: int) -> tuple[nn.Module, int]:
    kind, wide, both = draw.choice([nn.LSTM, nn.GRU, nn.RNN]), draw.choice([64, 128, 256]), draw.random() < 0.3
    dropout, bias = draw.choice([0.0, 0.0, 0.1]), draw.random() < 0.8
    num_layers = draw.choice([2, 3]) if dropout else draw.choice([1, 2])
    layers = kind(width, wide, num_layers, bias=bias, batch_first=True, dropout=dropout, bidirectional=both)
    return _Recurrent(layers), 2 * wide if both else wide


_RECURRENT: tuple[Layer, ...] = (_recurrent, _recurrent, _linear, _same(nn.LayerNorm))


def _convolution(draw: random.Random, width: int) -> tuple[nn.Module, int]:
    wide = draw.choice([32, 64, 96])
    return nn.Conv2d(width, wide, draw.choice([1, 3]), padding="same", bias=draw.random() < 0.5), wide


_IMAGE: tuple[Layer, ...] = (
    _convolution,
    _convolution,
    _same(nn.BatchNorm2d),
    _same(lambda width: nn.GroupNorm(8, width)),
    _same(nn.InstanceNorm2d),
    _same(lambda width: nn.AvgPool2d(3, 1, 1)),
    _same(lambda width: nn.MaxPool2d(3, 1, 1)),
    _same(lambda width: nn.Conv2d(width, width, 3, padding=1, groups=width)),
    _same(lambda width: nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.AvgPool2d(2))),
    _same(lambda width: nn.Sequential(nn.Upsample(scale_factor=2), nn.MaxPool2d(2))),
    _same(lambda width: nn.Dropout2d(0.1)),
    _same(lambda width: nn.Sequential(nn.PixelUnshuffle(2), nn.PixelShuffle(2))),
)


class _Network(nn.Module):
    def __init__(self, layers: list[nn.Module], num_tokens: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, width) if num_tokens else None
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(self.embedding(x) if self.embedding is not None else x)
        return result


@dataclass(frozen=True, slots=True)
class _Family:
    layers: tuple[Layer, ...]
    widths: tuple[int, ...]
    inputs: tuple[str, ...]
    num_tokens: int = 0


FAMILIES = {
    "flat": _Family((*_FLAT, *_POINTWISE, *_FUNCTIONS), (256, 512, 784), ("{width}",)),
    "sequence": _Family((*_SEQUENCE, *_SEQUENCE, *_POINTWISE, *_FUNCTIONS), (256, 384, 512), ("128x{width}",)),
    "tokens": _Family((*_SEQUENCE, *_SEQUENCE, *_POINTWISE), (256, 512), ("96",), 8000),
    "recurrent": _Family((*_RECURRENT, *_RECURRENT, *_POINTWISE), (128, 256), ("64x{width}",)),
    "image": _Family((*_IMAGE, *_IMAGE, *_POINTWISE), (16, 32), ("{width}x64x64", "{width}x48x48")),
}


def build(seed: int) -> nn.Module:
    """The network of a seed."""
    draw, family, width = _begun(seed)
    first, layers = width, []
    for _ in range(draw.randint(4, 10)):
        layer, width = draw.choice(family.layers)(draw, width)
        layers.append(layer)
    # One that is trained, whatever was drawn.
    last = nn.Conv2d(width, 8, 1) if family is FAMILIES["image"] else nn.Linear(width, 64)
    return _Network([*layers, last], family.num_tokens, first)


def random_program(seed: int) -> Program:
    """The network of a seed and how it is trained; every third one through a closure."""
    draw, family, width = _begun(seed)
    draw = random.Random(f"training {seed}")
    shape = [int(number) for number in draw.choice(family.inputs).format(width=width).split("x")]
    size = draw.choice([8, 32, 64]) * (16 if family is FAMILIES["flat"] else 1)
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    make = kinds.get(draw.choice(OPTIMIZERS), torch.optim.RMSprop)
    is_bfloat16 = draw.choice(["off", "off", "bfloat16", "float16"]) == "bfloat16"
    model, batch, tokens = build(seed), Batch(), family.num_tokens
    optimizer = make(model.parameters(), lr=1e-3)

    def loss_of_step() -> Tensor:
        x = batch.of(torch.randint(tokens, (size, *shape)) if tokens else torch.randn(size, *shape))
        with torch.autocast("cuda", torch.bfloat16 if is_bfloat16 else torch.float32, enabled=is_bfloat16):
            loss: Tensor = model(x).float().square().mean()
        loss.backward()
        return loss

    def step() -> Tensor:
        if seed % 3:
            loss = loss_of_step()
            optimizer.step()
        else:
            loss = optimizer.step(loss_of_step)  # type: ignore[arg-type, assignment]
        optimizer.zero_grad()
        return loss.detach()

    return Program(step, model, [optimizer], batch)


def _begun(seed: int) -> tuple[random.Random, _Family, int]:
    draw = random.Random(f"program {seed}")
    family = FAMILIES[draw.choice(list(FAMILIES))]
    return draw, family, draw.choice(family.widths)
