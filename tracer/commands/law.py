"""`predict --law`: how memory grows with sizes, found by a few runs on the null GPU and kept as a function."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from tracer.allocator import law as law_file
from tracer.allocator.law import MOST, Sizes
from tracer.answers.answer_of_law import answer_of_law
from tracer.answers.law import FoundLaw, SizedRun, find_law, run_of
from tracer.commands.fit_trials import ScriptTrials
from tracer.commands.on_card import Run
from tracer.commands.script import Script
from tracer.commands.workload_options import WorkloadOptions
from tracer.errors import TracerError, UsageError
from tracer.exporters.files import check_folder, write_atomically, write_json
from tracer.exporters.screen.answer import print_answer
from tracer.exporters.screen.console import Console
from tracer.null_gpu.cards import Devices
from tracer.units import format_bytes

_HINT = 'Write --vary "--batch-size 1..256"; for a model --vary batch, "tokens 128..4096" or 3x64x64..256.'
_SIZES = r"(?P<low>\d+)\.\.(?P<high>\d*)"
_OF_SCRIPT = re.compile(rf"(?P<words>-{{1,2}}[\w.-]+[ =]){_SIZES}")
_OF_MODEL = re.compile(rf"(?P<words>batch|tokens)(?: {_SIZES})?|(?:\d+x)*(?P<l>\d+)\.\.(?P<h>\d*)(?:x\d+)*")


@dataclass(frozen=True)
class Varied:
    """A size that is varied: an option of a script; of a model its batch, its tokens or a side of its input."""

    words: str  # `--batch-size`, `--batch-size=`, `batch`, `tokens`, or a shape as `3x{}x{}`
    low: int
    high: int
    base: int  # Where it stays while another one is varied

    @property
    def name(self) -> str:
        """Its name in law.py."""
        return "side" if "{}" in self.words else re.sub(r"\W", "_", self.words.strip("-="))

    def arguments(self, size: int) -> tuple[str, ...]:
        """Return arguments that set it."""
        if "{}" in self.words:
            return "input", self.words.format(*[size] * self.words.count("{}"))
        return (f"{self.words}{size}",) if self.words.endswith("=") else (self.words, str(size))


def varied(text: str, script: Script | None, workload: WorkloadOptions) -> Varied:
    """Read one `--vary`."""
    match = (_OF_MODEL if script is None else _OF_SCRIPT).fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--vary {text} names no size and its range.", hint=_HINT)
    found = match.groupdict()
    low, high = int(found["low"] or found.get("l") or 1), int(found["high"] or found.get("h") or MOST)
    if not 0 < low < high:
        raise UsageError(f"--vary {text}: its range is empty.", hint=_HINT)
    if (words := (found["words"] or "").rstrip(" ")) == "":
        words = "x".join("{}" if ".." in part or part == str(low) else part for part in text.strip().split("x"))
    given = [*script.arguments, ""] if script is not None else []
    values = [value for word, value in pairwise(given) if word == words]
    values += [word.removeprefix(words) for word in given if words.endswith("=") and word.startswith(words)]
    values += {"batch": [str(workload.batch_size)], "tokens": [str(workload.tokens or low)]}.get(words, [])
    base = int(values[-1]) if values and values[-1].isdecimal() else low
    return Varied(words, low, high, min(max(low, base), high))


def with_sizes(workload: WorkloadOptions, arguments: Sequence[str]) -> WorkloadOptions:
    """Return the workload with the sizes of a trial."""
    values = dict(zip(arguments[::2], arguments[1::2], strict=True))
    first, *others = workload.inputs or [""]
    name, shape, rest = re.fullmatch(r"(.*=)?([^:]*)(.*)", first).groups("")  # type: ignore[union-attr]
    return replace(
        workload,
        batch_size=int(values.get("batch", workload.batch_size)),
        tokens=int(values["tokens"]) if "tokens" in values else workload.tokens,
        inputs=[f"{name}{values.get('input', shape)}{rest}", *others] if first or "input" in values else (),
    )


def answer_law(
    texts: Sequence[str], run: Run, devices: Devices, script: Script | None, workload: WorkloadOptions
) -> None:
    """Find the law of some sizes, write it and tell it."""
    sizes = [varied(text, script, workload) for text in texts]
    if len({size.name for size in sizes}) < len(sizes) or len(sizes) > 2:
        raise UsageError("A law is of one size, or of two different ones.", hint="Name each size in one --vary.")
    if run.save_dir is not None:
        check_folder(run.save_dir)
    console = run.console
    near = [(size.low, size.high if size.high < MOST else max(64, 8 * size.base)) for size in sizes]
    with ScriptTrials(devices.card.usable_bytes, run.place.job) as trials:
        make_run = partial(_run, sizes=sizes, trials=trials, console=console)
        found = find_law([size.name for size in sizes], [(size.low, size.high) for size in sizes], near, make_run)
    if run.save_dir is not None:
        _write(found, devices, run.save_dir)
        console.say(f"Files in {run.save_dir}: law.json, law.py.")
    told = answer_of_law(found, devices, [size.base for size in sizes])
    console.answer(lambda: _document(found, devices), lambda rich: print_answer(told, rich, full=console.is_full))


def _run(at: Sizes, sizes: Sequence[Varied], trials: ScriptTrials, console: Console) -> SizedRun:
    """Run at some sizes, and read the requests."""
    found: list[SizedRun | None] = []
    arguments = [word for size, number in zip(sizes, at, strict=True) for word in size.arguments(number)]
    trial = trials.record(arguments, lambda path: found.append(run_of(at, path, 0, 0)))
    if trial.has_ended_before or not found or found[0] is None:
        reason = next(iter(trial.notes), "It allocated nothing.")
        raise TracerError(f"With {' '.join(arguments)} no step was made: {reason}", hint="Name another range.")
    peak, reserved = format_bytes(trial.allocated_bytes), format_bytes(trial.reserved_bytes)
    console.say(f"{' '.join(arguments)}: {peak} allocated, {reserved} reserved.")
    return replace(found[0], allocated_bytes=trial.allocated_bytes, reserved_bytes=trial.reserved_bytes)


def _document(found: FoundLaw, devices: Devices) -> dict[str, Any]:
    import torch

    from tracer.exporters.json_documents.header import json_header

    return {
        **json_header("law", 1, torch=torch.__version__, computed=False),
        "card": devices.words,
        "usable_bytes": devices.card.usable_bytes,
        "num_runs": len(found.sizes),
        "checks": [asdict(check) for check in found.checks],
        "law": asdict(found.law),
    }


def _write(found: FoundLaw, devices: Devices, folder: Path) -> None:
    """Write law.json, and law.py: the text of the module of laws, with this law and its largest error at its end."""
    write_json(folder / "law.json", _document(found, devices))
    text = Path(law_file.__file__).read_text("utf-8")
    names = ("peak_bytes", "reserved_bytes", "bounds_bytes", "largest", "why")
    functions = "\n".join(f"{name} = LAW.{name}" for name in names)
    write_atomically(folder / "law.py", f"{text}\n\nLAW = {found.law!r}\n{functions}\nERROR = {found.error}\n")
