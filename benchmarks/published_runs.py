"""Published measurements of GPU memory, one `PublishedRun` each, from the files that hold them.

Needs ../shared/truth, which is no part of the project; without it there are no runs.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracer.units import MIB

TRUTH = Path(__file__).resolve().parents[2] / "shared" / "truth"
Figure = Literal["driver", "whole device", "reserved", "allocated", "outcome"]
"""What was measured: driver's used memory less its first sample; the device's used memory with context and libraries;
torch's peaks; or only whether it ran."""

_FIGURES: Mapping[str, Figure] = {
    "xmem": "driver",
    "gpumemnet_timm": "whole device",
    "gpumemnet_mlp": "whole device",
    "gpumemnet_test": "whole device",
    "timm_outcome": "outcome",
    "liger_module": "allocated",
    "litgpt_lora": "allocated",
    "litgpt_config": "allocated",
    "torchao": "allocated",
    "peft": "reserved",
}
_CONTEXT_MIB = 250.0
"""What the driver's context takes of a card before torch reserves anything, as the driver reports it."""
_CARDS_MIB = {
    "RTX 3060": 12037.4,
    "RTX 4060": 7932.9,
    "RTX 3090": 24268.0,
    "A100 40GB": 40536.0,
    "A100-SXM4-40GB": 40536.0,
    "A10G 24GB": 22731.0,
}
_FIRST_ROWS_CARD = "RTX 3060"
_NAMES = {
    "convnexttiny": "convnext_tiny",
    "mnasnet": "mnasnet1_0",
    "mobenetv3large": "mobilenet_v3_large",
    "mobenetv3small": "mobilenet_v3_small",
    "mobilenetv2": "mobilenet_v2",
    "regnetx400mf": "regnet_x_400mf",
    "regnety400mf": "regnet_y_400mf",
    "facebook-opt-125m": "opt-125m",
    "facebook-opt-350m": "opt-350m",
    "openai-community-gpt2": "gpt2",
    "distilbert-distilgpt2": "distilgpt2",
    "eleutherai-gpt-neo-125m": "gpt-neo-125m",
    "cerebras-cerebras-gpt-111m": "cerebras-111m",
}
_DECODERS = ("distilgpt2", "gpt2", "opt-125m", "opt-350m", "gpt-neo-125m", "cerebras-111m")


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A run of somebody else's.

    Attributes:
        row: Its name.
        collection: Where it was published.
        figure: What was measured.
        kind: Of model: cnn, decoder_lm, module, ...
        model: Its name, the same for the same model in all collections.
        library: Where the model comes from; of a generated network its layers.
        dtype: Of the parameters.
        amp: How mixed precision was on, in the collection's words; `no` where it was not.
        optimizer: Of `torch.optim`, by name.
        batch_size: As it stands, since of single modules it is another size: `V=131072`.
        shape: Of a sample, or a module's settings as JSON.
        card: The GPU.
        capacity_bytes: What torch can reserve on it; None where the card is not known.
        measured_bytes: The figure; None for outcomes.
        ran: Whether it ran; else it was out of memory, and the figure is the peak that was reached.
        estimates: What others predicted for it, in bytes, by name.
        grade: A complete configuration, B one or two inferred settings, C settings missing.
    """

    row: str
    collection: str
    figure: Figure
    kind: str
    model: str
    library: str
    dtype: str
    amp: str
    optimizer: str
    batch_size: str
    shape: str
    card: str
    capacity_bytes: int | None
    measured_bytes: int | None
    ran: bool
    estimates: Mapping[str, int]
    grade: str

    @property
    def family(self) -> str:
        """The models that are left out together: convnext, gpt, vgg, ..."""
        name = self.model.split(" ")[0]
        if name in _DECODERS:
            return {"distilgpt2": "gpt2", "opt-125m": "opt", "opt-350m": "opt"}.get(name, name)
        return re.split(r"[_\d-]", name.lower())[0] or name


def published_runs(folder: Path = TRUTH) -> list[PublishedRun]:
    """All runs, in the order of the files; none where the files are not."""
    if not (folder / "gpu_memory.csv").is_file():
        return []
    return [*_rows_of_collections(folder / "gpu_memory.csv"), *_first_rows(folder / "xmem_first_rows.csv")]


def _rows_of_collections(path: Path) -> Iterator[PublishedRun]:
    for row in _rows(path):
        measured = row["measured_mib"]
        yield PublishedRun(
            row=row["row_id"],
            collection=row["set"],
            figure=_FIGURES[row["set"]],
            kind=row["family"],
            model=_NAMES.get(row["model"].lower(), row["model"].lower()),
            library=row["library"],
            dtype=row["dtype"].split(" ")[0],
            amp=row["amp"].split(" ")[0] if row["amp"].startswith("no") else row["amp"],
            optimizer=row["optimizer"].split(" ")[0],
            batch_size=row["batch_size"],
            shape=row["seq_or_image"],
            card=row["gpu"],
            capacity_bytes=_capacity(row["gpu"]),
            measured_bytes=round(float(measured) * MIB) if measured else None,
            ran=row["outcome"] == "ran",
            estimates=_estimates(row["other_estimates"]),
            grade=row["grade"],
        )


def _first_rows(path: Path) -> Iterator[PublishedRun]:
    for number, row in enumerate(_rows(path) if path.is_file() else ()):
        model = _NAMES.get(row["model"].lower(), row["model"].lower())
        is_text = model in _DECODERS
        yield PublishedRun(
            row=f"first-{number:02d}",
            collection="xmem",
            figure="driver",
            kind="decoder_lm" if is_text else "cnn",
            model=model,
            library="transformers" if is_text else "torchvision",
            dtype="float32",
            amp="no",
            optimizer=row["optimizer"],
            batch_size=row["batch_size"],
            shape="128" if is_text else "86x86x3",
            card=_FIRST_ROWS_CARD,
            capacity_bytes=_capacity(_FIRST_ROWS_CARD),
            measured_bytes=round(float(row["measured_mib"]) * MIB),
            ran=row["outcome"] == "ran",
            estimates={},
            grade="A",
        )


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _capacity(card: str) -> int | None:
    for name, total in _CARDS_MIB.items():
        if card.startswith(name):
            return round((total - _CONTEXT_MIB) * MIB)
    return None


def _estimates(text: str) -> dict[str, int]:
    found = {}
    for name, value in json.loads(text or "{}").items():
        try:
            found[name] = round(float(value) * MIB)
        except ValueError:  # a dash
            continue
    return found
