"""Causes of failures: programs that run out of memory for a known reason should be told it first.

    uv run python -m benchmarks.causes [--here] [--ways WAY ...] [--workers N] [NAME ...]

Each program of scripts/causes says in its first line its card and its cause, mostly after a public report. It runs on
the null GPU twice: with the allocator's history dumped by an observer at the failure, and in `except`, as most people
do; and under `run --on CARD`. Right is what has the cause as the first change, or as the decisive one. With
`--here` they run on the GPU of this machine, of whose memory they get that of their card; `--ways run` leaves the
dumps out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.tables import as_markdown
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.answers.why.first_changes import first_changes
from tracer.null_gpu.cards import devices_of
from tracer.null_gpu.process import environment
from tracer.snapshot.load import load_snapshot

_PROGRAMS = Path(__file__).parent / "scripts" / "causes"
_HEAD = re.compile(r'"""(.+); on (\S+): (.+)\."""')
_NO_CAUSE = "largest line"
_LIMIT_S = 600
_WAYS = ("except", "observer", "run")


def limited_to(card: str) -> dict[str, str]:
    """Variables in which torch's allocator reserves no more of the GPU here than of a card, such as `h100:8GiB`."""
    import torch

    fraction = devices_of(card).card.usable_bytes / torch.cuda.get_device_properties(0).total_memory
    own = os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
    settings = ",".join(filter(None, [own, f"per_process_memory_fraction:{fraction:.9f}"]))
    return {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings}


def _dump(program: str, folder: Path) -> None:
    """Run a program in this process and write its history at each failure, and behind the one that ends it."""
    import torch

    memory = torch.cuda.memory
    memory._record_memory_history(max_entries=200_000)
    attach = torch._C._cuda_attach_out_of_memory_observer  # type: ignore[attr-defined]
    attach(lambda *arguments: memory._dump_snapshot(str(folder / "observer.pickle")))
    try:
        runpy.run_path(program, run_name="__main__")
    except torch.cuda.OutOfMemoryError:
        memory._dump_snapshot(str(folder / "except.pickle"))


def _of_dump(file: Path) -> str:
    """The first cause in a dump."""
    if not file.exists():
        return "not out of memory"
    replayed = replay_snapshot(load_snapshot(file))
    (device, *_) = replayed.devices
    first = first_changes(device)
    return first.changes[0].cause if first is not None and first.changes else "nothing"


def _of_run(program: Path, card: str, folder: Path, here: bool) -> str:
    """The decisive cause that `run` says."""
    out = folder / "run"
    where = [] if here else ["--on", card]
    command = [sys.executable, "-m", "tracer", "run", *where, "--save-dir", str(out), str(program)]
    variables = limited_to(card) if here else None
    said = subprocess.run(command, env=variables, capture_output=True, check=False, timeout=_LIMIT_S, text=True)
    if "with --inference" in said.stdout + said.stderr:
        command.insert(4, "--inference")
        subprocess.run(command, env=variables, capture_output=True, check=False, timeout=_LIMIT_S)
    for file, key in ((out / "peak.json", "failure"), (out / "later" / "watch.json", "out_of_memory")):
        if file.exists() and (failure := json.loads(file.read_text()).get(key)):
            return failure["decisive"] or _NO_CAUSE
    return "no failure"


def _judged(program: Path, here: bool, ways: Sequence[str]) -> dict[str, str]:
    head = _HEAD.match(program.read_text())
    assert head is not None, f"{program.name} does not say its card and cause."
    _, card, cause = head.groups()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if {*ways} - {"run"}:
            devices = devices_of(card)
            command = [sys.executable, "-m", "benchmarks.causes", "--dump", name, str(program)]
            variables = limited_to(card) if here else environment((devices.card,) * devices.count)
            subprocess.run(command, env=variables, capture_output=True, check=False, timeout=_LIMIT_S)
        found = {
            way: _of_run(program, card, folder, here) if way == "run" else _of_dump(folder / f"{way}.pickle")
            for way in ways
        }
    wrong = {how: said for how, said in found.items() if said not in cause.split(" or ")}
    shown = {how: "right" if how not in wrong else said for how, said in found.items()}
    return {"program": program.stem, "cause": cause, **shown}


def main() -> None:
    """Print a row for each program, and how many are right in each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs of scripts/causes; all by default")
    parser.add_argument("--ways", nargs="+", choices=_WAYS, default=_WAYS, help="all by default")
    parser.add_argument("--here", action="store_true", help="on the GPU of this machine")
    parser.add_argument("--workers", type=int, default=1, help="programs at a time")
    parser.add_argument("--dump", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.dump is not None:
        _dump(arguments.names[0], arguments.dump)
        os._exit(0)
    programs = sorted(_PROGRAMS.glob("*.py"))
    chosen = [program for program in programs if not arguments.names or program.stem in arguments.names]
    rows = []
    with ThreadPoolExecutor(arguments.workers) as pool:
        for row in pool.map(partial(_judged, here=arguments.here, ways=arguments.ways), chosen):
            rows.append(row)
            print(f"{len(rows)} of {len(chosen)}: {row}", file=sys.stderr, flush=True)
    print(as_markdown([list(rows[0]), *(list(row.values()) for row in rows)]))
    for how in arguments.ways:
        print(f"{how}: {sum(row[how] == 'right' for row in rows)} of {len(rows)} right")


if __name__ == "__main__":
    main()
