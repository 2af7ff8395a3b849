"""torchtitan's own train.py of December 2024 as ranks of a job on the null GPU, beside what its authors published.

    python -m benchmarks.torchtitan FOLDER                     every row of its table
    python -m benchmarks.torchtitan FOLDER --rows cp-2 70b     those whose name begins so
    python -m benchmarks.torchtitan FOLDER --bare              without a command of ours, as torch 2.6 can

FOLDER has the sources of commit 9dec370, see `benchmarks/scripts/titan.py`; rows with Float8 want torchao 0.7, the
version of that month. The figure is the largest of torchtitan's own log in four steps, of the ranks that ran: what was
reserved, as its authors report. The command is `run --watch`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Final

import torch

from benchmarks.tables import as_markdown
from tracer.null_gpu.cards import named_card
from tracer.null_gpu.job.place import RankPlace
from tracer.null_gpu.process import environment

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "benchmarks" / "scripts"
CARD: Final = "h100-96GB"
# Inductor checks strides that flash attention's backward and its description disagree on, with keys that all heads
# share. No size hangs on it.
VARIABLES: Final = {"TORCHINDUCTOR_SIZE_ASSERTS": "0", "OMP_NUM_THREADS": "1"}
_COMPILED = ("--training.compile",)
_FLOAT8 = (
    *_COMPILED, "--float8.enable_float8_linear", "--float8.enable_fsdp_float8_all_gather",
    "--float8.precompute_float8_dynamic_scale_for_fsdp",
)  # fmt: skip
_ASYNC = ("--experimental.enable_async_tensor_parallel",)
_FULL = ("--activation_checkpoint.mode", "full")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of torchtitan's table.

    Attributes:
        name: Of ours.
        num_ranks: H100 of 96 GB.
        config: Of its train_configs.
        options: Of torchtitan's.
        published_gib: The largest of all ranks.
        ranks: Those that are run: the first, and the last stage of a pipeline.
        has_expandable_segments: As torchtitan's own run_llama_train.sh sets. Its authors do not say where they did; the
            tables with context parallelism come out so to 0.4 %, and the others without.
    """

    name: str
    num_ranks: int
    config: str
    options: tuple[str, ...]
    published_gib: float
    ranks: tuple[int, ...] = (0,)
    has_expandable_segments: bool = False

    def variables(self) -> dict[str, str]:
        """Variables of its processes' environment."""
        return VARIABLES | (
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if self.has_expandable_segments else {}
        )


def _batch(size: int, *options: str, length: int = 8192, context: int = 1) -> tuple[str, ...]:
    sizes = ("--training.batch_size", size, "--training.seq_len", length)
    return (*map(str, sizes), "--experimental.context_parallel_degree", str(context), *options)


def _pipeline(schedule: str) -> tuple[str, ...]:
    degree = ("--experimental.pipeline_parallel_degree", "8")
    return (*degree, "--experimental.pipeline_parallel_schedule", schedule, *_FLOAT8)


ROWS: Final = (
    Row("8", 8, "llama3_8b", _batch(2), 82.4),
    Row("8-compiled", 8, "llama3_8b", _batch(2, *_COMPILED), 77.0),
    Row("8-float8", 8, "llama3_8b", _batch(2, *_FLOAT8), 76.8),
    Row("cp-1", 8, "llama3_8b", _batch(1, *_FLOAT8, *_FULL, length=32768), 83.9, (0,), True),
    Row("cp-2", 8, "llama3_8b", _batch(1, *_FLOAT8, *_FULL, length=65536, context=2), 84.2, (0,), True),
    Row("cp-4", 8, "llama3_8b", _batch(1, *_FLOAT8, *_FULL, length=131072, context=4), 84.0, (0,), True),
    Row("cp-8", 8, "llama3_8b", _batch(1, *_FLOAT8, *_FULL, length=262144, context=8), 84.5, (0,), True),
    Row("128", 128, "llama3_8b", _batch(2), 67.0),
    Row("128-compiled", 128, "llama3_8b", _batch(2, *_COMPILED), 62.0),
    Row("128-float8", 128, "llama3_8b", _batch(2, *_FLOAT8), 61.8),
    Row("70b", 256, "llama3_70b", _batch(16, *_FLOAT8), 71.9),
    Row("70b-async", 256, "llama3_70b", _batch(16, *_FLOAT8, *_ASYNC), 67.6),
    Row("405b-1f1b", 512, "llama3_405b", _batch(32, *_pipeline("1F1B")), 82.5, (0, 448)),
    Row("405b-interleaved", 512, "llama3_405b", _batch(32, *_pipeline("Interleaved1F1B")), 72.7, (0, 448)),
    Row("405b-cp-1", 512, "llama3_405b", _batch(8, *_pipeline("1F1B"), length=32768), 75.3, (0, 448), True),
    Row("405b-cp-2", 512, "llama3_405b", _batch(8, *_pipeline("1F1B"), length=65536, context=2), 75.9, (0, 448), True),
    Row("405b-cp-4", 512, "llama3_405b", _batch(8, *_pipeline("1F1B"), length=131072, context=4), 77.1, (0, 448), True),
    Row("405b-cp-8", 512, "llama3_405b", _batch(8, *_pipeline("1F1B"), length=262144, context=8), 84.9, (0, 448), True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", nargs="*", default=[""])
    parser.add_argument("--bare", action="store_true", help="without run --watch")
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}")
    table = [["row", "published", "ours", "error", "by rank", "seconds"]]
    for row in ROWS:
        if row.name.startswith(tuple(arguments.rows)):
            what = [str(SCRIPTS / "titan.py"), str(arguments.folder.resolve()), row.config, *row.options]
            began = perf_counter()
            said = list(_bare(row, what) if arguments.bare else _watched(row, what))
            table.append(_cells(row, said, perf_counter() - began))
            print(" | ".join(table[-1]), flush=True)
    print(as_markdown(table))


def _cells(row: Row, said: Sequence[str], seconds: float) -> list[str]:
    logged = [max(map(float, re.findall(r"memory: *([\d.]+)GiB", text)), default=0.0) for text in said]
    ours, is_whole = max(logged, default=0.0), all("Training completed" in text for text in said)
    return [
        row.name,
        f"{row.published_gib:.1f} GiB",
        f"{ours:.2f} GiB" if is_whole else "did not end",
        f"{100 * (ours / row.published_gib - 1):+.2f} %" if is_whole else "",
        ", ".join(f"{rank}: {gib:.2f}" for rank, gib in zip(row.ranks, logged, strict=False)),
        f"{seconds:.0f}",
    ]


def _watched(row: Row, what: Sequence[str]) -> Iterator[str]:
    """Yield what each rank printed, by a command of its own; of a pipeline's last one rank 0 runs before it."""
    for rank in row.ranks:
        with tempfile.TemporaryDirectory() as folder:
            words = ("run", "--watch", "--on", f"{row.num_ranks}x{CARD}", "--rank", str(rank), "--save-dir", folder)
            ended = subprocess.run(
                [sys.executable, str(ROOT / "main.py"), *words, *what], cwd=folder,
                env={**os.environ, **row.variables(), **_paths()},
                capture_output=True, text=True, timeout=1800, check=False,
            )  # fmt: skip
        yield ended.stdout + ended.stderr


def _paths() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))}


def _bare(row: Row, what: Sequence[str]) -> Iterator[str]:
    """Yield what each rank printed, one behind the other in one job."""
    card = named_card(CARD)
    assert card is not None
    with tempfile.TemporaryDirectory() as folder:
        for rank in row.ranks:
            place = RankPlace(rank, row.num_ranks, 8, Path(folder))
            ended = subprocess.run(
                [sys.executable, str(SCRIPTS / "lone_rank.py"), *what], cwd=folder,
                env=environment([card] * 8) | place.variables() | row.variables() | _paths(),
                capture_output=True, text=True, timeout=3600, check=False,
            )  # fmt: skip
            yield ended.stdout + ended.stderr


if __name__ == "__main__":
    main()
