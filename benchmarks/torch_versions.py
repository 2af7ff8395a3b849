"""Results with each version of torch: what is recorded, peaks beside torch's own counters, and causes.

    uv run python -m benchmarks.torch_versions [VERSION ...] [--python PATH] [--every N]

Of each version uv makes an environment in a temporary folder, of some 6 GB, which goes when its row is done; `--python`
names one that is there in its place. In it 30 programs of tests/truth run on the CPU, and from torch 2.9 on, on the
null GPU of an H100, where the allocator itself counts the peak; and ten programs of scripts/causes that run out of
memory under `run --on`, of which those are counted that are told the right cause. `--every 4` takes each fourth.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.tables import as_markdown

_ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.0", "2.13.0", "2.14.0", "2.15.0")
"""By default all that are supported."""
PROGRAMS = (
    *("packed_sequences", "momentum_encoder", "results_kept_in_a_list", "penalty_of_gradients", "optimizers_replaced"),
    *("loop_enumerated", "loop_accumulated", "loop_epochs_with_evaluation", "diffusion_unet", "gan_two_optimizers"),
    *("variational_autoencoder", "siamese_triplet", "mixture_of_experts", "encoder_decoder", "generate_with_cache"),
    *("truncated_lstm", "tied_language_model", "graph_network", "replay_buffer_q_learning", "leaking_losses"),
    *("teacher_and_student", "low_rank_adapters", "average_of_weights", "recomputed_segments", "mixed_precision"),
    *("accumulated_gradients", "straight_through_function", "optimizer_inside_backward", "activations_offloaded"),
    "inference_only",
)
CAUSES = (
    *("attention_matrix", "losses_in_a_list", "language_model_head", "retain_graph", "validation", "create_graph"),
    *("outputs_of_an_epoch", "running_loss", "sliding_window", "replay_buffer"),
)
_HEADER = [
    "torch",
    "CPU: unchanged",
    "sums",
    "peaks",
    "null GPU: unchanged",
    "sums",
    "peaks",
    "causes",
]
_WITH_NULL_GPU = (2, 9)


@contextmanager
def _python_with(version: str) -> Iterator[str]:
    """The Python of an environment that has this version of torch, and what the programs import."""
    with tempfile.TemporaryDirectory() as folder:
        python = str(Path(folder, "bin", "python"))
        subprocess.run(["uv", "venv", "--quiet", "--clear", "--python", "3.11", folder], check=True)
        wanted = ["-r", str(_ROOT / "pyproject.toml"), "--group", f"{_ROOT / 'pyproject.toml'}:dev"]
        install = ["uv", "pip", "install", "--quiet", "--python", python, *wanted, f"torch=={version}"]
        subprocess.run(install, check=True)
        yield python


def _printed(python: str, *words: str) -> str:
    """Return what a benchmark prints with a Python; what its programs say goes by."""
    command = [python, "-m", *words, "--workers", "2"]
    variables = {**os.environ, "PYTHONPATH": "."}
    return subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, env=variables, check=False).stdout


def _truth(python: str, every: int, *options: str) -> tuple[str, str, str]:
    """Number of programs of which all is unchanged, the rows sum to the peak, and the peak is right."""
    for line in _printed(python, "benchmarks.truth", "--programs", *PROGRAMS[::every], *options).splitlines():
        if line.startswith("| all "):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            return cells[2], cells[4], cells[7]
    return "does not run", "", ""


def _causes(python: str, every: int) -> str:
    printed = _printed(python, "benchmarks.causes", *CAUSES[::every], "--ways", "run")
    right = re.search(r"^run: (.+) right$", printed, re.MULTILINE)
    return right[1] if right is not None else "does not run"


def _row(version: str, python: str, every: int) -> list[str]:
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < _WITH_NULL_GPU:
        return [version, *_truth(python, every), "-", "-", "-", "-"]
    return [version, *_truth(python, every), *_truth(python, every, "--on", "h100"), _causes(python, every)]


def main() -> None:
    """Print a row for each version."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--python", help="of an environment that is there, with the one version that is named")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th program of the lists")
    options = parser.parse_args()
    rows = []
    for version in options.versions:
        if options.python is not None:
            rows.append(_row(version, options.python, options.every))
        else:
            with _python_with(version) as python:
                rows.append(_row(version, python, options.every))
        print(rows[-1], file=sys.stderr, flush=True)
    print(as_markdown([_HEADER, *rows]))


if __name__ == "__main__":
    main()
