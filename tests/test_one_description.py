"""One run, one description: each file of a run, and what is read back from it, says the same of every block.

Ten programs, on the CPU and on the null GPU, that end well and that run out of memory in the first step's forward, in a
later backward, in the optimizer and in an evaluation.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import main
from tests.processes import run_python
from tests.snapshot.explained import explain_snapshot
from tracer.answers.rows import Row
from tracer.blocks.kinds import Kind
from tracer.exporters.page.timeline_page import timeline_page
from tracer.exporters.recording_file.kept_run_file import load_kept_run
from tracer.sessions.stored_results import results_of
from tracer.snapshot.load import load_snapshot

ROOT = Path(__file__).parents[1]
MODELS = {
    "linear": "nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))",
    "deep": "nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6)))",
    "normed": "nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Dropout(0.1), nn.Linear(64, 64))",
    "attention": "nn.Sequential(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True))",
    "convolution": "nn.Sequential(nn.Unflatten(1, (1, 64)), nn.Conv1d(1, 8, 3, padding=1), nn.Flatten(), "
    "nn.Linear(512, 64))",
    "batch norm": "nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64))",
    "tied": "nn.Sequential(shared := nn.Linear(64, 64), nn.Tanh(), shared)",
    "checkpointed": "Checkpointed(64)",
    # Its weights are less than a piece of the allocator that it does not split: 13.4 of 14 MiB.
    "wide": "nn.Sequential(nn.Linear(64, 55000), nn.Linear(55000, 4, bias=False))",
    "own function": "nn.Sequential(nn.Linear(64, 64), Squared(), nn.Linear(64, 64))",
}
PLACES = ("forward", "backward", "optimizer", "evaluation")
SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

device, place = sys.argv[1:]

def run_out():
    torch.empty(1 << 50, dtype=torch.uint8, device=device)

class Checkpointed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient

class Squared(nn.Module):
    def forward(self, x):
        return Square.apply(x)

class Adam(torch.optim.Adam):
    def step(self, closure=None):
        super().step(closure)
        if place == "optimizer":
            run_out()

model = MODEL
model.to(device)
optimizer = Adam(model.parameters())
for step in range(7):
    x = torch.randn(16, 64, device=device)
    y = model(x)
    if place == "forward":
        run_out()
    loss = y.square().mean()
    if place == "backward" and step == 2:
        y.register_hook(lambda gradient: run_out())
    loss.backward()
    optimizer.step()
    if place == "evaluation" and step == 2:
        model.eval()
        with torch.no_grad():
            kept = [model(x) for _ in range(3)]
            run_out()
    optimizer.zero_grad()
"""
# What runs out of memory on the null GPU runs again in a process of its own, which takes five seconds: slow.
QUICK = (("own function", "end", "h100"),)
ENDS = ("end", *PLACES)
# Each model on each device, and each end on each device with two of the models: 20 of the 100.
SOME = [
    (name, ENDS[turn % len(ENDS)], card)
    for row, name in enumerate(MODELS)
    for card, turn in (("cpu", row + 2), ("h100", 4 - row))
]

Place = tuple[str, str | None, int | None]


def in_kinds(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for row in rows:
        sums[Kind[row["category"]].words] += requested(row)
    return sums


def in_places(rows: Iterable[dict[str, Any]]) -> Counter[Place]:
    sums: Counter[Place] = Counter()
    for row in rows:
        sums[Kind[row["category"]].words, row["file"], row["line"]] += requested(row)
    return sums


def requested(row: dict[str, Any]) -> int:
    """The CPU's allocator hands out what it is asked for."""
    return int(row["bytes"] if row["requested_bytes"] is None else row["requested_bytes"])


def of_groups(groups: Sequence[Row], key: Callable[[Row], Any]) -> Counter[Any]:
    sums: Counter[Any] = Counter()
    for group in groups:
        sums[key(group)] += group.bytes
    return sums


def kind_of(group: Row) -> str:
    return group.kind.words


def place_of(group: Row) -> Place:
    return group.kind.words, group.site.file, group.site.line


def on_screen(screen: str) -> dict[str, int]:
    """The table of categories."""
    table = re.split(r"\n(?:What filled it|What was in use then)\n", screen)[1].split("\n\n")[0]
    rows = [re.match(r"(\S.*?) {2,}([\d,]+) ", line) for line in table.splitlines()[1:]]
    found = {row.group(1): int(row.group(2).replace(",", "")) for row in rows if row is not None}
    found.pop("sum")
    return found


def compared(path: Path) -> list[dict[str, Any]]:
    """The devices of a `diff` of something with itself."""
    return json.loads(CliRunner().invoke(main.app, ["diff", str(path), str(path), "--json"]).stdout)["devices"]


@pytest.mark.parametrize(
    ("model", "place", "card"),
    [pytest.param(*one, marks=() if one in QUICK else pytest.mark.slow, id="-".join(one)) for one in SOME],
)
def test_every_output_says_the_same_of_every_block(model: str, place: str, card: str, tmp_path: Path) -> None:
    script, folder = tmp_path / "train.py", tmp_path / "out"
    script.write_text(SCRIPT.replace("MODEL", MODELS[model]))
    on, device = (("--on", card), "cuda") if card != "cpu" else ((), "cpu")
    options = ("--save-dir", folder, "--keep-recording", "--full", *on)
    done = run_python(ROOT / "main.py", "run", *options, script, device, place, folder=tmp_path)
    assert "internal fault" not in done.stderr, done.stderr
    assert done.returncode == (0 if place == "end" else 1), done.stderr

    peak = json.loads((folder / "peak.json").read_text())
    rows, failure = peak["rows"], peak["failure"]
    assert sum(row["bytes"] for row in rows) == peak["peak_bytes"]
    assert (failure is not None) == (place != "end" and card != "cpu")

    devices = explain_snapshot(load_snapshot(folder / "memory_snapshot.pkl")).parts
    (read,) = (found for found in devices if found.peak.peak_bytes)
    if failure is None or failure["is_peak"]:
        assert of_groups(read.peak.rows, kind_of) == in_kinds(rows)
        assert of_groups(read.peak.rows, place_of) == in_places(rows)
    if failure is not None:
        in_use = failure["rows"] or rows
        event = read.failures[-1]
        assert of_groups(event.groups, kind_of) == in_kinds(in_use)
        assert of_groups(event.groups, place_of) == in_places(in_use)
        assert event.advice == failure["advice"]

    shown: Counter[str] = Counter()
    for row in (failure["rows"] if failure is not None else None) or rows:
        shown[Kind[row["category"]].words] += row["bytes"]
    assert on_screen(done.stdout) == {kind: size for kind, size in shown.items() if size}

    with closing(sqlite3.connect(folder / "memory_report.sqlite")) as database:
        assert database.execute("SELECT size_bytes FROM misc_sizes").fetchall() == [(peak["peak_bytes"],)]

    # The page works out what was in use at any moment: at the peak it is what the rows say.
    results = results_of(load_kept_run(folder / "recording.npz"))
    assert results.findings is not None
    page = timeline_page(results.findings, results.answer, run={}, failed=results.failed_allocation)
    assert page.blocks is not None
    assert page.peak_row is not None and page.group is not None
    is_alive = page.blocks.alive_at(page.peak_row)
    assert page.blocks.size_bytes[is_alive].sum() == peak["peak_bytes"]
    drawn: Counter[Place] = Counter()
    for group, size in zip(page.group[is_alive].tolist(), page.blocks.size_bytes[is_alive].tolist(), strict=True):
        of = page.groups[group]
        if size:
            drawn[Kind[of.category].words, of.file, of.line] += size
    said: Counter[Place] = Counter()
    for row in rows:
        said[Kind[row["category"]].words, row["file"], row["line"]] += row["bytes"]
    assert drawn == said

    # What `report` writes from the kept recording is the same to the byte.
    again = tmp_path / "again"
    reported = CliRunner().invoke(main.app, ["report", str(folder), "--save-dir", str(again)])
    assert reported.exit_code == 0, reported.stderr
    names = [name for name in ("peak.json", "max_mem.txt", "memory_snapshot.pkl") if (folder / name).exists()]
    assert [name for name in names if (folder / name).read_bytes() != (again / name).read_bytes()] == []
    (same,) = compared(folder)
    assert same["before_bytes"] == peak["peak_bytes"] and {part["bytes"] for part in same["by_category"]} == {0}
    (same,) = (device for device in compared(folder / "memory_snapshot.pkl") if device["before_bytes"])
    kinds = {part["kind"]: part["before_bytes"] for part in same["by_kind"] if part["before_bytes"]}
    assert kinds == of_groups(read.peak.rows, kind_of) and {part["bytes"] for part in same["by_kind"]} == {0}
