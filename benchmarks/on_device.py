"""Questions to a GPU in the few minutes in which one is lent: the most valuable first, within a limit of time.

    python -m benchmarks.on_device                             nine minutes on the GPU of this machine
    python -m benchmarks.on_device --minutes 25 --part 2       another limit; this part alone
    python -m benchmarks.on_device --on h200                   on the null GPU of this card: so it is tested and planned

Programs run in processes of their own, as many at once as there are cores and memory of the device, each with a limit
of both: a program that outlasts its limit is ended with all that it started. What measures times runs alone. Behind
each program on_device.json, or the file of `--to`, holds what was found, and a file beside it, .md, the tables. A later
call with the same file goes on with what is not in it; what was cut off by the end of the time is asked again.

Below the tables stand the seconds of a processor that each part took, and when it would end on 16 cores by these: the
longest programs are not split, and programs that were not run count as the median of their part, or as their limit
where none of it was.

It needs this checkout, torch, numpy, typer and rich; for part 3 torchvision and transformers, for part 7 pytest and
hypothesis. Nothing is installed or downloaded: a package that is missing is unpacked in a folder named by PYTHONPATH.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.beside_null_gpu import PROGRAMS
from benchmarks.tables import as_markdown
from tests.truth.catalogue import names
from tracer.null_gpu.cards import CONTEXT_BYTES, Card, devices_of
from tracer.null_gpu.process import environment
from tracer.units import GIB

ROOT: Final = Path(__file__).resolve().parent.parent
_SCRIPTS: Final = Path(__file__).parent / "scripts"
_HEAD: Final = re.compile(r'"""(.+); on (\S+): (.+)\."""')
TRUTH: Final = (
    # What broke on the first GPU that was met, and is mended: checkpoints, frames that kept themselves, recurrent
    # layers, workspaces; and jobs, which waited there for ranks that did not run.
    *("workload:checkpointing", "recomputed_segments", "gan_two_optimizers", "momentum_encoder", "workload:lstm"),
    *("truncated_lstm", "teacher_and_student", "fsdp2", "data_parallel", "fsdp1", "compiled_inductor_fullgraph"),
    *("compiled_graph_break_eager", "mixed_precision", "accumulated_gradients", "optimizer_inside_backward"),
    *("activations_offloaded", "loop_enumerated", "loop_epochs_with_evaluation", "diffusion_unet", "library_t5"),
    *("mixture_of_experts", "generate_with_cache", "tied_language_model", "graph_network", "nested_jagged"),
    *("leaking_losses", "low_rank_adapters", "failing_in_backward", "closures_for_lbfgs", "inference_only"),
)
_TO_START_S: Final = 10.0
"""Least time left for beginning a further program."""
_TO_ASK_S: Final = 120.0
"""Most time in which a device says what it is: torch is imported for it."""
_TO_END_S: Final = 3.0
"""Most time for which a killed process is waited for: one that a device's driver does not let go of never ends."""
_PAUSE_S: Final = 0.02
_CORES_OF_PLAN: Final = 16
_SAID_CHARACTERS: Final = 3000
_PR_SET_CHILD_SUBREAPER: Final = 36
Row = list[str]
Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """A program that is run and judged: a module of the benchmarks or of the tests with its arguments."""

    part: int
    name: str
    words: tuple[str, ...]  # Behind `python -m`
    limit_s: float = 120.0
    process_bytes: int = 4 * GIB  # Most of the device that torch's allocator may reserve in each of its processes
    num_processes: int = 1  # On the device at once
    limits_itself: bool = False  # It gives its processes less of the device, the memory of a card of its own
    is_alone: bool = False  # It measures times
    starts_here: bool = False  # It knows no null GPU: its process is the one that runs there

    @property
    def key(self) -> str:
        """Its name in the file of results."""
        return f"{self.part}: {self.name}"

    @property
    def device_bytes(self) -> int:
        """Bytes of the device that are set aside for it."""
        return self.num_processes * (self.process_bytes + CONTEXT_BYTES)


@dataclass(frozen=True, slots=True)
class Part:
    """A question, and which rows of its tables are right."""

    title: str
    is_right: Callable[[Row], bool]


def _is_true(row: Row) -> bool:
    return not {"NO", "CRASH", "does not run"} & set(row)


PARTS: Final = {
    1: Part("Sums and peaks beside an independent bookkeeper", _is_true),
    2: Part("Causes of programs that run out of memory", lambda row: row[2:] == ["right"] * 3),
    3: Part("Peaks of trainings beside the null GPU of this card", lambda row: row[2].replace(",", "").isdigit()),
    4: Part("What `fit` promised, applied", lambda row: row[2] == "right" and row[5] in ("the same peak", "-")),
    5: Part("The cost of recording", lambda row: True),
    6: Part("A snapshot of a million entries", lambda row: True),
    7: Part("Tests that need a GPU", lambda row: True),
    8: Part("All other programs beside the bookkeeper", _is_true),
}


def tasks(on: str | None) -> list[Task]:
    """Return all programs, in the order of their value; on the GPU of this machine where `on` is None."""
    here = () if on else ("--here",)
    card = ("--on", on) if on else ()
    truth = names(on_device=True, of_ranks=on is not None)
    first = [name for name in TRUTH if name in truth]

    def of_truth(part: int, name: str) -> Task:
        words = ("benchmarks.truth", *here, *card, "--details", "--programs", name)
        return Task(part, name, words, num_processes=2)

    def of_scripts(part: int, kind: str, limit_s: float) -> Iterable[Task]:
        for path in sorted((_SCRIPTS / kind).glob("*.py")):
            head = _HEAD.match(path.read_text())
            assert head is not None, f"{path.name} does not say its card."
            devices = devices_of(head[2])
            if devices.count == 1 or on:
                words = (f"benchmarks.{kind}", *here, path.stem)
                yield Task(part, path.stem, words, limit_s, devices.card.memory_bytes, limits_itself=True)

    in_tests = sorted(path for path in ROOT.glob("tests/**/test_*.py") if "mark.gpu" in path.read_text("utf-8"))
    of_gpu = (str(path.relative_to(ROOT)) for path in in_tests if path.name != "test_gpu_tests.py")
    return [
        *(of_truth(1, name) for name in first),
        *of_scripts(2, "causes", 120.0),
        *(Task(3, name, ("benchmarks.beside_null_gpu", *card, name), 120.0, 9 * GIB) for name in PROGRAMS),
        *of_scripts(4, "fit", 150.0),
        Task(
            5,
            "fno",
            ("benchmarks.overhead", "--programs", "fno", "--rounds", "1"),
            90.0,
            is_alone=True,
            starts_here=True,
        ),
        Task(6, "synthetic", ("benchmarks.snapshot", "--repeats", "1"), 150.0, 0),
        Task(7, "pytest", ("pytest", "-q", "-m", "gpu", "-n", "4", *of_gpu), 240.0, 4 * GIB, 4, starts_here=True),
        *(of_truth(8, name) for name in truth if name not in first),
    ]


def variables_of(task: Task, card: Card, on: str | None) -> dict[str, str]:
    """Return the environment of a task: one thread of a processor, and its part of the device."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"}
    if on and task.starts_here:
        return environment((card,), variables) | {"NULL_GPU_KERNELS": "1"}
    if not on and not task.limits_itself:
        share = min(1.0, task.process_bytes / card.memory_bytes)
        variables["PYTORCH_CUDA_ALLOC_CONF"] = f"per_process_memory_fraction:{share:.9f}"
    return variables


# ---- one program -----------------------------------------------------------------------------------------------------


def run_task(words: Sequence[str], variables: Mapping[str, str], limit_s: float, folder: Path) -> Result:
    """Run `python -m WORDS` with all that it starts, whichever session that is of, and end what is left of it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what it leaves behind is this process's
    began, is_late = time.monotonic(), False
    out, err = folder / "out", folder / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=ROOT, env=dict(variables), stdin=subprocess.DEVNULL, stdout=stdout,
            stderr=stderr,
        )  # fmt: skip
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            is_late = True
    seconds = time.monotonic() - began
    end_children(os.getpid())
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] or time.monotonic() - began < seconds + _TO_END_S:
            time.sleep(_PAUSE_S)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = out.read_text("utf-8", "replace")
    return {
        "status": None if is_late else process.returncode,
        "seconds": round(seconds, 1),
        "processor_s": round(used.ru_utime + used.ru_stime, 1),
        "rows": table_rows(printed),
        "said": (printed + err.read_text("utf-8", "replace"))[-_SAID_CHARACTERS:],
    }


def table_rows(printed: str) -> list[Row]:
    """Return the first table of Markdown that a benchmark printed, its header first, without its row of sums."""
    rows: list[Row] = []
    for line in printed.splitlines():
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            break
    return [row for row in rows if set(row) != {"---"} and not row[0].startswith("all ")]


def end_children(pid: int) -> None:
    """Kill every process that a process started, directly or not."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text("utf-8", "replace").rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    for child in found - {pid}:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def start(words: Sequence[str], variables: Mapping[str, str], limit_s: float, folder: Path) -> int:
    """Begin a task in a fork of this process, which leaves its result as a file; its process id."""
    folder.mkdir()
    if (pid := os.fork()) == 0:
        status = 1
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            (folder / "result").write_text(json.dumps(run_task(words, variables, limit_s, folder)))
            status = 0
        finally:
            os._exit(status)
    return pid


# ---- all programs ----------------------------------------------------------------------------------------------------


def run_all(
    waiting: Sequence[Task],
    variables: Callable[[Task], Mapping[str, str]],
    room: Room,
    end_s: float,
    done: Callable[[Task, Result], None],
) -> None:
    """Run tasks in their order, as many at once as there is room for, until a moment.

    Args:
        variables: The environment of each.
        end_s: When the last one is ended, on the monotonic clock.
        done: Called with the result of each that ended by itself or by its own limit.
    """
    left, running = list(waiting), dict[int, tuple[Task, float, Path]]()
    with tempfile.TemporaryDirectory() as name:
        try:
            while True:
                left_s = end_s - time.monotonic()
                while left and left_s > _TO_START_S and room.has(left[0], [task for task, _, _ in running.values()]):
                    task, folder = left.pop(0), Path(name) / str(len(left))
                    limit_s = min(task.limit_s, left_s)
                    running[start(task.words, variables(task), limit_s, folder)] = (task, limit_s, folder)
                if not running:
                    return
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if left_s < -2 * _TO_END_S:
                    return
                if not pid:
                    time.sleep(_PAUSE_S)
                    continue
                task, limit_s, folder = running.pop(pid)
                if not (file := folder / "result").exists():  # killed from outside
                    continue
                result = json.loads(file.read_text())
                if result["status"] is not None or limit_s == task.limit_s:
                    done(task, result)
        finally:
            for pid in running:
                end_children(pid)
                os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Room:
    """Room for programs at once."""

    cores: int
    device_bytes: int

    def has(self, task: Task, running: Sequence[Task]) -> bool:
        """Return True if a task can begin beside those that run."""
        if not running:
            return True
        if task.is_alone or any(one.is_alone for one in running):
            return False
        taken = sum(one.device_bytes for one in running)
        return len(running) < self.cores and taken + task.device_bytes <= self.device_bytes


def plan(asked: Sequence[Task], results: Mapping[str, Result], room: Room) -> dict[int, float]:
    """Return when each part would end, in seconds, if each program took one core for its processor's seconds."""
    known: dict[int, list[float]] = {part: [] for part in PARTS}
    for task in asked:
        if task.key in results:
            known[task.part].append(results[task.key]["processor_s"])
    now, ends, running = 0.0, dict[int, float](), list[tuple[float, Task]]()
    for task in asked:
        while not room.has(task, [one for _, one in running]):
            now = min(end for end, _ in running)
            running = [one for one in running if one[0] > now]
        measured = results.get(task.key, {}).get("processor_s")
        end = now + (median(known[task.part] or [task.limit_s]) if measured is None else measured)
        running.append((end, task))
        ends[task.part] = max(ends.get(task.part, 0.0), end)
    return ends


# ---- files -----------------------------------------------------------------------------------------------------------


def document(head: str, asked: Sequence[Task], results: Mapping[str, Result], device_bytes: int) -> str:
    """Return the tables of what is done, the plan, and what programs that went wrong said at their end."""
    ends = plan(asked, results, Room(_CORES_OF_PLAN, device_bytes))
    summary = [["part", "done", "right", "processor, s", f"ends on {_CORES_OF_PLAN} cores, s"]]
    tables, wrong = list[str](), list[str]()
    for number in ends:
        part, of_part = PARTS[number], [task for task in asked if task.part == number]
        done = [task for task in of_part if task.key in results]
        right = [task for task in done if is_right(task, results[task.key])]
        rows = [row for task in done for row in results[task.key]["rows"][1:]]
        tables.append(f"## {number}. {part.title}\n")
        if rows:
            header = next(results[task.key]["rows"][0] for task in done if results[task.key]["rows"])
            tables.append(as_markdown([header, *rows]) + "\n")
        for task in done:
            result = results[task.key]
            ended = (
                f"status {result['status']}" if result["status"] is not None else f"ended after {task.limit_s:.0f} s"
            )
            said = f"### {task.key}: {ended}\n\n```\n{result['said'].strip()}\n```\n"
            if task not in right:
                wrong.append(said)
            elif not result["rows"]:
                tables.append(said)
        used_s = sum(results[task.key]["processor_s"] for task in done)
        done_of = f"{len(done)} of {len(of_part)}"
        summary.append([f"{number}. {part.title}", done_of, str(len(right)), f"{used_s:.0f}", f"{ends[number]:.0f}"])
    return "\n".join([head, "", as_markdown(summary), "", *tables, *wrong])


def is_right(task: Task, result: Result) -> bool:
    """Return True if a program ended in its time and well, and every row of its table is right."""
    return result["status"] == 0 and all(map(PARTS[task.part].is_right, result["rows"][1:]))


def main() -> int:
    """Run what is not done yet, and write the files behind each program; 1 if one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="after which nothing runs any more")
    parser.add_argument("--part", type=int, choices=PARTS, action="append", help="this part alone; can be repeated")
    parser.add_argument("--on", metavar="CARD", help="on the null GPU of this card")
    parser.add_argument("--to", type=Path, default=Path("on_device.json"), help="the file of results")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="programs at a time")
    parser.add_argument("--slower", type=float, default=1.0, help="factor on limits, where other work shares the cores")
    options = parser.parse_args()
    end_s = time.monotonic() + 60 * options.minutes
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what was started, as Ctrl-C does
    card, head = device_of(options.on)
    kept: dict[str, Any] = json.loads(options.to.read_text()) if options.to.exists() else {"head": head, "results": {}}
    if kept["head"] != head:
        raise SystemExit(f"{options.to} is of {kept['head']}, and this is {head}: name another file with --to.")
    results: dict[str, Result] = kept["results"]
    chosen = [task for task in tasks(options.on) if options.part is None or task.part in options.part]
    asked = [replace(task, limit_s=options.slower * task.limit_s) for task in chosen]

    def done(task: Task, result: Result) -> None:
        results[task.key] = result
        said = "right" if is_right(task, result) else "WRONG"
        print(f"{task.key}: {said}, {result['seconds']} s", file=sys.stderr, flush=True)
        options.to.write_text(json.dumps(kept, indent=1))
        options.to.with_suffix(".md").write_text(document(head, asked, results, card.memory_bytes))

    run_all(
        [task for task in asked if task.key not in results],
        lambda task: variables_of(task, card, options.on),
        Room(options.workers, card.memory_bytes),
        end_s,
        done,
    )
    print(document(head, asked, results, card.memory_bytes))
    return int(not all(is_right(task, results[task.key]) for task in asked if task.key in results))


_ASK: Final = """
import json, platform, torch
found = torch.cuda.get_device_properties(0)
print(json.dumps([found.name, found.total_memory, torch.__version__, platform.python_version()]))
"""


def device_of(on: str | None) -> tuple[Card, str]:
    """Return the device as a card, and what it and the versions are in words."""
    known = devices_of(on).card if on else None
    variables = environment((known,)) if known else None
    ask = [sys.executable, "-c", _ASK]
    asked = subprocess.run(ask, capture_output=True, text=True, env=variables, check=False, timeout=_TO_ASK_S)
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SystemExit(f"There is no GPU here ({last}): name a card with --on.")
    name, memory_bytes, torch_version, python_version = json.loads(asked.stdout)
    where = f"the null GPU of {name}, which computes nothing" if on else name
    return Card(
        "", memory_bytes, name
    ), f"{where}, {memory_bytes:,} bytes, torch {torch_version}, Python {python_version}"


if __name__ == "__main__":
    sys.exit(main())
