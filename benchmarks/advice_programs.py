"""Programs of many kinds, none of them among the tests' own, small enough to be tried with every change."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.changes.programs import UNet
from tracer.workloads.module_steps import ModuleWorkload

Program = Callable[[torch.device], ModuleWorkload]


def _workload(
    model: nn.Module, shape: tuple[int, ...], device: torch.device, *, tokens: int = 0, kind: Any = torch.optim.AdamW
) -> ModuleWorkload:
    """A step on random numbers, or on random tokens below a bound; the loss is the model's own, or a mean square."""
    model = model.to(device)

    def next_batch() -> Any:
        return ((torch.randint(tokens, shape, device=device) if tokens else torch.randn(shape, device=device),), {})

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = kind(trained, lr=1e-3)
    return ModuleWorkload(model=model, optimizer=optimizer, next_batch=next_batch, device=device, loss=_loss)


def _loss(output: Any) -> Tensor:
    result: Tensor = output.loss if hasattr(output, "loss") else output.square().mean()
    return result


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.pairs, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.pairs(x).chunk(3, -1))
        shares = torch.softmax(query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5, -1)
        return x + self.out((shares @ value).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def naive_attention(device: torch.device) -> ModuleWorkload:
    """Scores of every token with every other one."""
    return _workload(nn.Sequential(*(_Attention(128) for _ in range(4))), (4, 512, 128), device)


def _gpt2(device: torch.device, way: str, layers: int = 2) -> ModuleWorkload:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(  # type: ignore[call-arg]
        n_layer=layers, n_embd=128, n_head=4, vocab_size=16384, n_positions=256, use_cache=False, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation=way, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model: nn.Module = GPT2LMHeadModel(config)
    model = model.to(device)

    def next_batch() -> Any:
        tokens = torch.randint(16384, (8, 256), device=device)
        return (), {"input_ids": tokens, "labels": tokens}

    optimizer = torch.optim.AdamW(model.parameters())
    return ModuleWorkload(model=model, optimizer=optimizer, next_batch=next_batch, device=device, loss=_loss)


def loss_inside(device: torch.device) -> ModuleWorkload:
    """Logits of a vocabulary."""
    return _gpt2(device, "sdpa")


def eager_hugging_face(device: torch.device) -> ModuleWorkload:
    """The same with naive attention."""
    return _gpt2(device, "eager", layers=8)


def unet(device: torch.device) -> ModuleWorkload:
    """Stages of different sizes."""
    return _workload(UNet(32), (4, 3, 128, 128), device)


def lstm(device: torch.device) -> ModuleWorkload:
    """A recurrent layer."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.LSTM(64, 256, 2, batch_first=True), nn.Linear(256, 1024)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layer(x)[0])  # type: ignore[no-any-return]

    return _workload(Model(), (16, 128, 64), device)


def large_embedding(device: torch.device) -> ModuleWorkload:
    """A table of which a step uses little."""
    return _workload(nn.Sequential(nn.Embedding(200_000, 64), nn.Linear(64, 64)), (32, 16), device, tokens=200_000)


def table_of_adagrad(device: torch.device) -> ModuleWorkload:
    """The same, with an optimizer that takes sparse gradients."""
    table = nn.Sequential(nn.Embedding(200_000, 64), nn.Linear(64, 64))
    return _workload(table, (32, 16), device, tokens=200_000, kind=torch.optim.Adagrad)


def optimizer_dominated(device: torch.device) -> ModuleWorkload:
    """Weights, and hardly anything else."""
    return _workload(nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))), (8, 1024), device)


def activation_dominated(device: torch.device) -> ModuleWorkload:
    """Small weights and a large batch."""
    blocks = (nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(6))
    return _workload(nn.Sequential(*blocks), (8192, 128), device)


def in_place_convolutions(device: torch.device) -> ModuleWorkload:
    """Activations that could overwrite their input."""
    layers = [nn.Conv2d(3 if n == 0 else 32, 32, 3, padding=1) for n in range(4)]
    stages = (nn.Sequential(layer, nn.BatchNorm2d(32), nn.ReLU()) for layer in layers)
    return _workload(nn.Sequential(*stages), (4, 3, 96, 96), device)


def diffusion(device: torch.device) -> ModuleWorkload:
    """Residual blocks with group norms, and the noise as target."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.layer = nn.GroupNorm(8, 64), nn.Conv2d(64, 64, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.layer(F.silu(self.norm(x)))  # type: ignore[no-any-return]

    return _workload(nn.Sequential(nn.Conv2d(3, 64, 1), *(Block() for _ in range(6))), (4, 3, 64, 64), device)


def experts(device: torch.device) -> ModuleWorkload:
    """Every expert sees every token, weighted."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(128, 8)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128)) for _ in range(8)
            )

        def forward(self, x: Tensor) -> Tensor:
            shares = self.gate(x).softmax(-1)
            return torch.stack([e(x) * shares[..., n : n + 1] for n, e in enumerate(self.experts)]).sum(0)

    return _workload(Model(), (2048, 128), device)


def low_rank(device: torch.device) -> ModuleWorkload:
    """Frozen weights with a small trained part."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(512, 512).requires_grad_(False)
            self.down, self.up = nn.Linear(512, 8, bias=False), nn.Linear(8, 512, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return F.gelu(self.base(x) + self.up(self.down(x)))

    return _workload(nn.Sequential(*(Adapted() for _ in range(6))), (2048, 512), device)


def momentum(device: torch.device) -> ModuleWorkload:
    """SGD with momentum."""
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6)))
    return _workload(model, (64, 1024), device, kind=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9))


def detection(device: torch.device) -> ModuleWorkload:
    """A pyramid of features, and at each place of it classes and a box; as FCOS without its targets."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = (3, 32, 64, 128)
            self.stages = nn.ModuleList(
                nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU())
                for a, b in itertools.pairwise(widths)
            )
            self.laterals = nn.ModuleList(nn.Conv2d(width, 64, 1) for width in widths[1:])
            self.tower = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.ReLU())
            self.classes, self.boxes = nn.Conv2d(64, 80, 3, padding=1), nn.Conv2d(64, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            features = []
            for stage, lateral in zip(self.stages, self.laterals, strict=True):
                x = stage(x)
                features.append(lateral(x))
            for n in (1, 0):
                features[n] = features[n] + F.interpolate(features[n + 1], scale_factor=2.0)
            towers = [self.tower(feature) for feature in features]
            found = [torch.cat([self.classes(tower), self.boxes(tower).exp()], 1).flatten(2) for tower in towers]
            return torch.cat(found, 2)

    return _workload(Model(), (4, 3, 128, 128), device)


class _Evaluated(ModuleWorkload):
    """Each step also calls the model in evaluation mode, on more samples, and forgets to switch gradients off."""

    def forward(self, batch: Any) -> Tensor | None:
        self.model.eval()
        score = self.model(torch.randn(8192, 128, device=self.device)).square().mean()
        self.model.train()
        del score
        return super().forward(batch)


def evaluation(device: torch.device) -> ModuleWorkload:
    """The peak is in an evaluation that keeps what a backward would need."""
    blocks = (nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(4))
    trained = _workload(nn.Sequential(*blocks), (1024, 128), device)
    return _Evaluated(**{field.name: getattr(trained, field.name) for field in fields(trained)})


def vision_transformer(device: torch.device) -> ModuleWorkload:
    """Patches and torch's own encoder."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 192, 8, 8)
            layer = nn.TransformerEncoderLayer(192, 6, 768, dropout=0.0, batch_first=True)
            self.encoder, self.head = nn.TransformerEncoder(layer, 4), nn.Linear(192, 100)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(self.patches(x).flatten(2).transpose(1, 2)).mean(1))  # type: ignore[no-any-return]

    return _workload(Model(), (8, 3, 128, 128), device)


def translation(device: torch.device) -> ModuleWorkload:
    """An encoder, a decoder, and two tables of words."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(8000, 128)
            self.both = nn.Transformer(128, 4, 2, 2, 512, dropout=0.0, batch_first=True)
            self.head = nn.Linear(128, 8000)

        def forward(self, ids: Tensor) -> Tensor:
            source = self.words(ids)
            return self.head(self.both(source, source.flip(1)))  # type: ignore[no-any-return]

    return _workload(Model(), (16, 64), device, tokens=8000)


def volumes(device: torch.device) -> ModuleWorkload:
    """Convolutions over three dimensions."""
    stages = (nn.Sequential(nn.Conv3d(1 if n == 0 else 16, 16, 3, padding=1), nn.ReLU()) for n in range(4))
    return _workload(nn.Sequential(*stages), (2, 1, 32, 32, 32), device)


def graph(device: torch.device) -> ModuleWorkload:
    """Messages along edges, summed up at their ends."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.message, self.update = nn.Linear(128, 64), nn.Linear(128, 64)
            ends = torch.arange(16_384)
            self.register_buffer("start", ends % 2048)
            self.register_buffer("end", ends * 7 % 2048)

        def forward(self, x: Tensor) -> Tensor:
            messages = F.relu(self.message(torch.cat([x[self.start], x[self.end]], 1)))  # type: ignore[index]
            sums = torch.zeros_like(x).index_add(0, self.end, messages)  # type: ignore[arg-type]
            return F.relu(self.update(torch.cat([x, sums], 1)))

    return _workload(nn.Sequential(*(Layer() for _ in range(4))), (2048, 64), device)


def spectral(device: torch.device) -> ModuleWorkload:
    """Weights of some frequencies, in complex numbers."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(32, 32, 12, 12, dtype=torch.complex64) / 32)
            self.skip = nn.Conv2d(32, 32, 1)

        def forward(self, x: Tensor) -> Tensor:
            spectrum = torch.fft.rfft2(x)
            low = torch.einsum("bixy,ioxy->boxy", spectrum[..., :12, :12], self.weight)
            padded = F.pad(low, (0, spectrum.shape[-1] - 12, 0, spectrum.shape[-2] - 12))
            return F.gelu(torch.fft.irfft2(padded, s=x.shape[-2:]) + self.skip(x))

    return _workload(nn.Sequential(nn.Conv2d(3, 32, 1), *(Layer() for _ in range(4))), (4, 3, 64, 64), device)


PROGRAMS: dict[str, Program] = {
    program.__name__: program
    for program in (
        naive_attention, loss_inside, eager_hugging_face, unet, lstm, large_embedding, table_of_adagrad,
        optimizer_dominated, activation_dominated, in_place_convolutions, diffusion, experts, low_rank, momentum,
        detection, evaluation, vision_transformer, translation, volumes, graph, spectral,
    )
}  # fmt: skip
