"""What the null GPU says of programs that others have measured on GPUs, through the command line.

    python -m benchmarks.null_gpu_published                          xMem's 22 runs of transformers
    python -m benchmarks.null_gpu_published --rows xmem-0026         those whose name begins so
    python -m benchmarks.null_gpu_published --workspaces default     with torch's own workspaces for cuBLAS
    python -m benchmarks.null_gpu_published --bare                   the loop alone, which torch 2.6 can run as well

xMem's figures lie in ../shared/truth, and without it they are left out. They were measured with transformers 4.51.3:
`uv run --no-project --with transformers==4.51.3 --with torch --with rich --with typer python -m
benchmarks.null_gpu_published`. The figure is what `predict --json` says is reserved, beside what the driver reported.

The measured runs had no workspaces of 8 MiB for cuBLAS in torch's memory: the rows tell, see benchmarks/results.md. So
they are predicted with CUBLAS_WORKSPACE_CONFIG=:16:8, which programs set that want the same results each time, and no
workspace for cuBLASLt, which had 1 MiB; it is an option of this benchmark alone. What the driver reports has more in it
than torch's memory: the kernels that were loaded after its first sample. One constant for each card stands for them,
the median of what is left of its rows, printed beside; errors are said without and with it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import torch

from benchmarks.engine import as_markdown
from benchmarks.null_gpu_commands import SCRIPTS, Ended, alone, predicted
from benchmarks.published_runs import TRUTH, PublishedRun, published_runs
from tracer.units import MIB


def main() -> None:
    arguments = _arguments()
    print(f"torch {torch.__version__}")
    runs = [run for run in xmem_transformers() if not arguments.rows or run.row.startswith(tuple(arguments.rows))]
    if runs:
        print_xmem(runs, arguments.workspaces, is_bare=arguments.bare)
    if not runs:
        print(f"xMem's figures are not here: {TRUTH} is missing.")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", default=[])
    parser.add_argument("--workspaces", default=":16:8", metavar="CONFIG", help="of cuBLAS, or default")
    parser.add_argument("--bare", action="store_true", help="what the allocator counts, without predict")
    return parser.parse_args()


# ---- xMem ------------------------------------------------------------------------------------------------------------


def xmem_transformers() -> list[PublishedRun]:
    """Its runs of transformers with a complete configuration; none without the figures."""
    return [run for run in published_runs() if run.row.startswith("xmem-") and run.kind != "cnn"]


def print_xmem(runs: Sequence[PublishedRun], workspaces: str, *, is_bare: bool) -> None:
    answers = []
    for run, ended in xmem_answers(runs, workspaces, is_bare=is_bare):
        print(_said(run, ended), flush=True)
        answers.append((run, ended))
    left: dict[str, list[int]] = {}
    for run, ended in answers:
        if (missing := _missing_bytes(run, ended)) is not None:
            left.setdefault(run.card, []).append(missing)
    constants = {card: round(median(sizes)) for card, sizes in left.items()}
    print(as_markdown([_HEAD, *(_cells(run, ended, constants) for run, ended in answers)]))
    for name, of_card in (("torch's memory alone", {}), ("with the card's constant", constants)):
        if errors := [error for run, ended in answers if (error := _error(run, ended, of_card)) is not None]:
            print(f"{name}: median error {median(map(abs, errors)):.2f} %, largest {max(map(abs, errors)):.1f} %.")
    print(f"{sum(ended.document.get('fits') is run.ran for run, ended in answers)} of {len(runs)} outcomes are right.")
    for card, constant in constants.items():
        print(f"The constant of the {card}: {constant / MIB:.0f} MiB, the median of {len(left[card])} rows.")


_HEAD = ["run", "card", "measured", "ours", "error", "missing", "error with the constant", "outcome", "seconds"]


def _missing_bytes(run: PublishedRun, ended: Ended) -> int | None:
    """What was measured beside what we say is reserved; None of runs that did not run."""
    reserved = ended.document.get("peak_reserved_bytes", 0)
    return run.measured_bytes - reserved if run.ran and run.measured_bytes and reserved else None


def _error(run: PublishedRun, ended: Ended, constants: Mapping[str, int]) -> float | None:
    missing = _missing_bytes(run, ended)
    return None if missing is None else 100 * (constants.get(run.card, 0) - missing) / (run.measured_bytes or 1)


def _said(run: PublishedRun, ended: Ended) -> str:
    return " | ".join(cell for cell in _cells(run, ended, {}) if cell)


def _cells(run: PublishedRun, ended: Ended, constants: Mapping[str, int]) -> list[str]:
    fits, missing = ended.document.get("fits"), _missing_bytes(run, ended)
    alone, with_constant = _error(run, ended, {}), _error(run, ended, constants)
    reserved = ended.document.get("peak_reserved_bytes", 0)
    return [
        f"{run.row} {run.model} {run.optimizer} {run.batch_size}",
        run.card,
        f"{(run.measured_bytes or 0) / MIB:,.0f} MiB" if run.ran else "out of memory",
        f"{reserved / MIB:,.0f} MiB" if fits else "out of memory" if fits is False else ended.last_line,
        f"{alone:+.2f} %" if alone is not None else "",
        f"{missing / MIB:,.0f} MiB" if missing is not None else "",
        f"{with_constant:+.2f} %" if with_constant is not None and constants else "",
        "right" if fits is run.ran else "wrong",
        f"{ended.seconds:.0f}",
    ]


def xmem_answers(
    runs: Sequence[PublishedRun], workspaces: str, *, is_bare: bool
) -> Iterator[tuple[PublishedRun, Ended]]:
    """What `predict --on` says of each, or the allocator itself."""
    variables = (
        {} if workspaces == "default" else {"CUBLAS_WORKSPACE_CONFIG": workspaces, "CUBLASLT_WORKSPACE_SIZE": "0"}
    )
    for run in runs:
        what = [run.model, run.optimizer, run.batch_size]
        answered = alone if is_bare else predicted
        yield run, answered(SCRIPTS / "xmem.py", what, on=run.card, variables=variables)


if __name__ == "__main__":
    main()
