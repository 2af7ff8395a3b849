"""Other people's libraries on the null GPU: small unchanged scripts under `run --on h100`, each explained to the byte.

    python -m benchmarks.null_gpu_libraries                  those whose packages are installed
    python -m benchmarks.null_gpu_libraries --only mixtral   those whose name begins so

All of them: `uv run --group integrations --with bitsandbytes --with torchao --with liger-kernel --with diffusers --with
timm python -m benchmarks.null_gpu_libraries`. A script is right if it ends with 0, its rows sum to the allocator's own
peak and nothing is left unexplained. Nothing is downloaded. The scripts are in benchmarks/scripts.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch

from benchmarks.engine import as_markdown
from benchmarks.null_gpu_commands import SCRIPTS, Ended, profiled
from tracer.units import MIB

CARD = "h100"


@dataclass(frozen=True, slots=True)
class Program:
    """A script.

    Attributes:
        name: What it is called here.
        script: In benchmarks/scripts.
        packages: What it needs.
        arguments: The script's own.
    """

    name: str
    script: str
    packages: tuple[str, ...]
    arguments: tuple[str, ...] = ()


TRAINER = Program("Trainer", "trainer.py", ("transformers", "accelerate"))
ACCELERATE = Program("accelerate", "accelerate_loop.py", ("accelerate",))
LIGHTNING = Program("Lightning", "lightning_module.py", ("lightning",))
PEFT = Program("peft", "peft_dora.py", ("peft", "transformers"))
DETECTION = Program("torchvision detection", "torchvision_detection.py", ("torchvision",))
LOOPED = Program("Mixtral, experts in a loop", "mixtral.py", ("transformers",), ("eager",))
GROUPED = Program("Mixtral, grouped", "mixtral.py", ("transformers",), ("grouped_mm",))
PROGRAMS = (
    TRAINER,
    ACCELERATE,
    LIGHTNING,
    Program("bitsandbytes", "bitsandbytes_qlora.py", ("bitsandbytes",)),
    Program("torchao, 8 bits", "torchao_training.py", ("torchao",)),
    Program("torchao, 4 bits", "torchao_training.py", ("torchao",), ("AdamW4bit",)),
    Program("Liger", "liger_llama.py", ("liger-kernel", "transformers")),
    PEFT,
    Program("diffusers", "diffusers_unet.py", ("diffusers",)),
    Program("timm", "timm_average.py", ("timm",)),
    DETECTION,
    LOOPED,
    GROUPED,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    only = [name.lower() for name in parser.parse_args().only]
    print(f"torch {torch.__version__}")
    table = [["program", "packages", "peak", "right", "seconds"]]
    peaks = {}
    for program in PROGRAMS:
        if only and not program.name.lower().startswith(tuple(only)):
            continue
        versions = installed(program.packages)
        ended = profiled(SCRIPTS / program.script, program.arguments, on=CARD) if versions else None
        peaks[program] = ended.document.get("peak_bytes", 0) if ended else 0
        table.append([program.name, versions or "not installed", *(_cells(ended) if ended else ["", "", ""])])
        print(" | ".join(table[-1]), flush=True)
    print(as_markdown(table))
    if peaks.get(GROUPED):
        print(f"Looped to grouped experts: {100 * (peaks[LOOPED] / peaks[GROUPED] - 1):+.2f} %.")


def installed(packages: Sequence[str]) -> str:
    """Names and versions; empty where one is missing."""
    try:
        return ", ".join(f"{package} {version(package)}" for package in packages)
    except PackageNotFoundError:
        return ""


def _cells(ended: Ended) -> list[str]:
    wrong = what_is_wrong(ended)
    return [f"{ended.document.get('peak_bytes', 0) / MIB:,.2f} MiB", wrong or "yes", f"{ended.seconds:.0f}"]


def what_is_wrong(ended: Ended) -> str:
    """Of a `run` that should have been explained to the byte; empty where it was."""
    peak = ended.document
    if ended.status:
        return f"ended with {ended.status}: {ended.last_line}"
    if not peak:
        return "left no peak.json"
    total, counted = sum(row["bytes"] for row in peak["rows"]), peak["allocator_peak_bytes"]
    if peak["unexplained_bytes"] or not total == counted == peak["peak_bytes"]:
        return f"rows sum to {total:,}, the allocator says {counted:,}, {peak['unexplained_bytes']:,} are unexplained"
    return ""


if __name__ == "__main__":
    main()
