"""What the null GPU says of programs that others have measured on GPUs, through the command line.

    python -m benchmarks.null_gpu_published                          xMem's 22 runs of transformers
    python -m benchmarks.null_gpu_published --rows xmem-0026         those whose name begins so
    python -m benchmarks.null_gpu_published --torchtitan FOLDER      torchtitan's four, from its own sources

xMem's figures lie in ../shared/truth, and without it they are left out. They were measured with transformers 4.51.3:
`uv run --no-project --with transformers==4.51.3 --with torch --with rich --with typer python -m
benchmarks.null_gpu_published`. The figure is what `predict --json` says is reserved, beside what the driver reported.
torch 2.15 allocates cuBLAS's workspaces for each call; with TORCH_CUBLAS_WORKSPACE_CACHE=1 in the environment it keeps
them, as the measured 2.6 did. torchtitan's figure is
the one of its own log, under `run --watch`; its sources are those of commit 9dec370, see `benchmarks/scripts/titan.py`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from benchmarks.engine import as_markdown
from benchmarks.null_gpu_commands import SCRIPTS, Ended, predicted, watched
from benchmarks.published_runs import TRUTH, PublishedRun, published_runs
from tracer.units import MIB


def main() -> None:
    arguments = _arguments()
    print(f"torch {torch.__version__}")
    runs = [run for run in xmem_transformers() if not arguments.rows or run.row.startswith(tuple(arguments.rows))]
    if runs and arguments.torchtitan is None:
        print_xmem(runs)
    if not runs:
        print(f"xMem's figures are not here: {TRUTH} is missing.")
    if arguments.torchtitan is not None:
        print_torchtitan(arguments.torchtitan)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", default=[])
    parser.add_argument("--torchtitan", type=Path, metavar="FOLDER")
    return parser.parse_args()


# ---- xMem ------------------------------------------------------------------------------------------------------------


def xmem_transformers() -> list[PublishedRun]:
    """Its runs of transformers with a complete configuration; none without the figures."""
    return [run for run in published_runs() if run.row.startswith("xmem-") and run.kind != "cnn"]


def print_xmem(runs: Sequence[PublishedRun]) -> None:
    table = [["run", "card", "measured", "ours", "error", "outcome", "seconds"]]
    errors, num_right = [], 0
    for run, ended in xmem_answers(runs):
        reserved = ended.document.get("peak_reserved_bytes", 0)
        fits = ended.document.get("fits")
        num_right += fits is run.ran
        error = 100 * (reserved / run.measured_bytes - 1) if run.ran and run.measured_bytes else None
        errors += [error] if error is not None else []
        table.append(
            [
                f"{run.row} {run.model} {run.optimizer} {run.batch_size}",
                run.card,
                f"{(run.measured_bytes or 0) / MIB:,.0f} MiB" if run.ran else "out of memory",
                f"{reserved / MIB:,.0f} MiB" if fits else "out of memory" if fits is False else ended.last_line,
                f"{error:+.2f} %" if error is not None else "",
                "right" if fits is run.ran else "wrong",
                f"{ended.seconds:.0f}",
            ]
        )
        print(" | ".join(table[-1]), flush=True)
    print(as_markdown(table))
    sizes = sorted(map(abs, errors))
    if sizes:
        print(f"Median error {median(sizes):.2f} %, largest {sizes[-1]:.1f} %; {num_right} of {len(runs)} outcomes.")


def xmem_answers(runs: Sequence[PublishedRun]) -> Iterator[tuple[PublishedRun, Ended]]:
    """What `predict --on` says of each."""
    for run in runs:
        what = [run.model, run.optimizer, run.batch_size]
        yield run, predicted(SCRIPTS / "xmem.py", what, on=run.card)


# ---- torchtitan ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TitanRow:
    """A row of torchtitan's table of December 2024.

    Attributes:
        num_ranks: H100 of 96 GB.
        compiled: Whether each block is compiled.
        published_gib: What its log says is reserved.
    """

    num_ranks: int
    compiled: bool
    published_gib: float


TITAN_ROWS = (TitanRow(8, False, 82.4), TitanRow(8, True, 77.0), TitanRow(128, False, 67.0), TitanRow(128, True, 62.0))


def print_torchtitan(folder: Path) -> None:
    table = [["Llama 3.1 8B, FSDP", "published", "ours", "error", "seconds"]]
    for row in TITAN_ROWS:
        what = [str(folder.resolve()), "llama3_8b", "--training.batch_size", "2"]
        what += ["--training.compile"] if row.compiled else []
        ended = watched(SCRIPTS / "titan.py", what, on=f"{row.num_ranks}xh100-96GB", options=("--rank", "0"))
        logged = [float(gib) for gib in re.findall(r"memory: *([\d.]+)GiB", ended.stderr)]
        reserved_gib = max(logged, default=0.0)
        table.append(
            [
                f"{row.num_ranks} H100, {'compiled' if row.compiled else 'eager'}",
                f"{row.published_gib:.1f} GiB",
                f"{reserved_gib:.2f} GiB, of {len(logged)} steps" if logged else ended.last_line,
                f"{100 * (reserved_gib / row.published_gib - 1):+.2f} %" if logged else "",
                f"{ended.seconds:.0f}",
            ]
        )
        print(" | ".join(table[-1]), flush=True)
    print(as_markdown(table))


if __name__ == "__main__":
    main()
