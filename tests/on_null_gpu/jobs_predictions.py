"""Predictions in a process on the null GPU, and what of them the tests look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tracer.commands.predict_on import Engine, OnNullGpu, Rehearsed
from tracer.commands.workload_options import PredictedWorkload
from tracer.null_gpu.cards import CONTEXT_BYTES, H100, Card, Devices
from tracer.null_gpu.process import limited_to
from tracer.results.prediction import OutOfMemoryAt, Prediction, Sizes
from tracer.sessions.script_run import FirstStepsDone, ScriptProfile
from tracer.sessions.trials.bisections import largest_fitting
from tracer.sessions.trials.null_gpu_prediction import predict_script
from tracer.sessions.trials.script_trial import script_sizes

MIB = 1 << 20


@dataclass(frozen=True)
class Told:
    """A prediction: its sizes, and what stands beside them."""

    engine: str
    need: Sizes
    memory: Sizes
    fits: bool | None
    failed_at: OutOfMemoryAt | None
    rows_bytes: int
    assumptions: tuple[str, ...]
    num_steps: int


def _told(answer: Prediction) -> Told:
    rows = answer.findings.worst.peak.rows if answer.findings is not None else ()
    return Told(
        answer.engine,
        answer.need,
        answer.memory,
        answer.fits,
        answer.failed_at,
        sum(row.bytes for row in rows),
        answer.assumptions,
        answer.results.num_steps,
    )


def card_with(usable_bytes: int) -> Card:
    """A card whose allocator can reserve so much."""
    return replace(H100, memory_bytes=usable_bytes + CONTEXT_BYTES)


def both(workload: PredictedWorkload, usable_bytes: int | None = None) -> tuple[Told, Told]:
    """What the null GPU says, and a rehearsal for the same card."""
    card = card_with(usable_bytes) if usable_bytes is not None else H100
    with limited_to(card.usable_bytes, 1):
        null = OnNullGpu(Devices(card)).predict(workload)
    return _told(null), _told(Rehearsed(card, None, "cuda").predict(workload))


def largest_of_both(workload: PredictedWorkload, usable_bytes: int) -> tuple[int, int]:
    """The largest batch that fits, by either engine."""
    card = card_with(usable_bytes)

    def largest(engine: Engine) -> int:
        return largest_fitting(
            lambda size: engine.trial(replace(workload, batch_size=size)), card.usable_bytes, workload.batch_size
        )

    with limited_to(card.usable_bytes, 1):
        null = largest(OnNullGpu(Devices(card)))
    return null, largest(Rehearsed(card, None, "cuda"))


def predict_file(file: Path, num_steps: int = 0) -> Told | None:
    """What is said of a script."""
    torch.cuda.reset_peak_memory_stats()
    devices = Devices(card_with(64 << 30))
    answer = predict_script(lambda profile: _ran(file, profile), devices, num_steps=num_steps, settings={})
    return None if answer is None else _told(answer)


def try_file(file: Path, num_steps: int = 0) -> tuple[bool, Sizes | None]:
    """Whether a script came to its end, and its peaks, by counters alone."""
    torch.cuda.reset_peak_memory_stats()
    ran: list[bool] = []

    def run(profile: ScriptProfile) -> bool:
        ran.append(_ran(file, profile))
        return ran[-1]

    counted = script_sizes(run, num_steps=num_steps)
    return (counted is None or counted.has_fit), None if counted is None else counted.sizes


def _ran(file: Path, profile: ScriptProfile) -> bool:
    try:
        with profile:
            exec(compile(file.read_text("utf-8"), str(file), "exec"), {"__name__": "__main__"})
    except FirstStepsDone:
        return True
    except torch.OutOfMemoryError:
        return False
    return True


def tied() -> nn.Module:
    """An embedding and an output layer with one weight, on the meta device."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(4096, 256)
            self.output = nn.Linear(256, 4096, bias=False)
            self.output.weight = self.embedding.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.output(self.embedding(ids))
            return result

    with torch.device("meta"):
        return Tied()


def layers() -> nn.Module:
    """Four layers, whose activations are most of what a large batch needs."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(4)))


@dataclass(frozen=True)
class Case:
    """A model, and how it is trained."""

    build: Callable[[], nn.Module]
    input: str = "1024"
    batch_size: int = 16384
    optimizer: str = "sgd"
    amp: Literal["off", "bfloat16"] = "off"


class _Then(nn.Module):
    """A layer, and a function of its result."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(1024, 1024, bias=False), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


def _then(function: Callable[[Tensor], Tensor]) -> Case:
    return Case(lambda: _Then(function))


def _cross_entropy(x: Tensor, **options: Any) -> Tensor:
    """Of logits and zeros; weights are ones."""
    ones = {name: torch.ones(x.shape[-1], device=x.device) for name, value in options.items() if value is True}
    return F.binary_cross_entropy_with_logits(x, torch.zeros_like(x), **options | ones)


class _Transposed(nn.Module):
    """A linear layer of samples and tokens in the other order."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 1024)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x.transpose(0, 1))
        return result


class _Efficient(nn.Module):
    """Attention of four heads by the kernel that takes a mask, with keys that are longer than one tile."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.qkv = width, nn.Linear(4 * width, 12 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 4, self.width).permute(2, 0, 3, 1, 4)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            y = nn.functional.scaled_dot_product_attention(q, k, v)
        return y.transpose(1, 2).reshape(batch, length, -1)


def _normed() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.RMSNorm(256), nn.Linear(256, 256), nn.GELU()) for _ in range(12)))


TORCHS_OWN_WAY = {
    "rms norm": Case(_normed, "64x256", 64, "adamw", "bfloat16"),
    "max": _then(lambda x: x.max(-1).values),
    "min": _then(lambda x: x.min(-1).values),
    "topk": _then(lambda x: x.topk(8).values),
    "median": _then(lambda x: x.median(-1).values),
    "take": _then(lambda x: x.take(torch.arange(4, device=x.device))),
    "greatest of all": _then(lambda x: x - x.amax(-1, keepdim=True)),
    "sum of flags": _then(lambda x: x[:1] * (x > 0).sum()),
    "running sum of flags": _then(lambda x: x[:1] * (x > 0).cumsum(-1)[:1]),
    "bias of what is not contiguous": Case(_Transposed, "64x256", 512),
    "dropout": Case(lambda: nn.TransformerEncoderLayer(256, 4, 512, batch_first=True), "96x256", 32),
    **{f"efficient, {width} wide": Case(partial(_Efficient, width), f"100x{4 * width}", 64) for width in (64, 96)},
    **{
        f"efficient, {width} wide, in 16 bits": Case(partial(_Efficient, width), f"100x{4 * width}", 64, amp="bfloat16")
        for width in (64, 128, 192)
    },
    "cross-entropy of logits": _then(_cross_entropy),
    "weighted cross-entropy of logits": _then(partial(_cross_entropy, weight=True, pos_weight=True, reduction="sum")),
    "running product": _then(lambda x: x.cumprod(-1)),
    "greatest alone": _then(lambda x: x.max()),
    "soft margin": _then(lambda x: F.soft_margin_loss(x, torch.ones_like(x))),
    "likelihood of a gaussian": _then(lambda x: F.gaussian_nll_loss(x, torch.zeros_like(x), torch.ones_like(x))),
    "adafactor": Case(lambda: nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))), "512", 1, "adafactor"),
    "embedding": Case(lambda: nn.Embedding(32000, 256), "512:int64:0-32000", 8),
}


def as_named(name: str) -> nn.Module:
    """The model of a case."""
    return TORCHS_OWN_WAY[name].build()
