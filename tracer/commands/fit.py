"""`torch-timeline fit`: whether a script fits on a GPU, and if not, the least that has to change."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracer.commands.common import errors_for_people, kept_import_path
from tracer.commands.on_card import OnOptions, start_on, values_on
from tracer.commands.options import number, option, with_options
from tracer.commands.predict_on import predict_script
from tracer.commands.run import check_script
from tracer.commands.usage import SCHEDULE
from tracer.errors import TracerError, UsageError
from tracer.exporters.screen.next_commands import program_name
from tracer.exporters.screen.terminal import say
from tracer.null_gpu.cards import Card, devices_of
from tracer.units import format_bytes

if TYPE_CHECKING:
    from tracer.runs.script_changes import ScriptChange

_DOES_NOT_FIT = 3
_TRIAL = "TORCH_TIMELINE_FIT"
"""Variable of a process that makes one trial: the changes, and the file that it leaves its answer in."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of some changes.

    Attributes:
        changes: That were made.
        fits: Whether the steps ran on the card.
        allocated_bytes: At most; where it does not fit, until memory ran out.
        reserved_bytes: The same.
        notes: What could not be made, a sentence each.
        has_ended_before: Whether the script ended before a step, otherwise than for want of memory: it does not bear
            the changes.
    """

    changes: tuple[ScriptChange, ...]
    fits: bool
    allocated_bytes: int
    reserved_bytes: int
    notes: tuple[str, ...] = ()
    has_ended_before: bool = False


@with_options
def fit(
    script: Annotated[str, typer.Argument(help="An unchanged script; with --module, a module's name.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What follows is the script's own.")] = None,
    module: Annotated[bool, option("SCRIPT names a module, as in `python -m`.", None, "--module", "-m")] = False,
    each: Annotated[bool, option("Try each change alone, and say what it saves, fit or not.", None, "--each")] = False,
    *,
    on: OnOptions,
    steps: Annotated[
        int, number("That are run; 0 for as many as it takes until memory repeats.", SCHEDULE, least=0)
    ] = 0,
) -> None:
    """Say whether a script fits on a GPU, and if not, find the least that has to change so that it does.

    Each trial runs the unchanged script on the null GPU, with changes made from outside that need no hand in it: first
    what gives up nothing but memory, then time, then digits. The answer is a command that trains with them. Exits with
    3 if nothing helps.

        torch-timeline fit --on rtx-4090 train.py --epochs 3

        torch-timeline fit --each --on rtx-4090 train.py --epochs 3
    """
    with errors_for_people(), kept_import_path():
        if on.on is None:
            raise UsageError("On which GPU is the script to run? --on is missing.", hint="Add --on rtx-4090, say.")
        devices = devices_of(on.on)
        if on.job is not None:
            raise UsageError("fit asks about one GPU.", hint="predict --on 8xh100 runs each rank of a job.")
        check_script(script, is_module=module)
        if asked := os.environ.get(_TRIAL):
            _try_here(json.loads(asked), on, script, arguments or [], is_module=module, num_steps=steps)
            return
        if each:
            if not _each(devices.card):
                raise typer.Exit(_DOES_NOT_FIT)
            return
        found = _least(devices.card)
        if found is None:
            say(
                f"Nothing that can be made from outside fits it on {devices.words}: a smaller batch, sharding over "
                "several GPUs or a larger one is left."
            )
            raise typer.Exit(_DOES_NOT_FIT)
        if not found.changes:
            return
        names = ",".join(change.name for change in found.changes)
        command = shlex.join([*(["-m"] if module else []), script, *(arguments or [])])
        print(f"{program_name()} run --apply {names} {command}")


def _each(card: Card) -> bool:
    """Print what each change alone comes to, in the order of what they give up; whether anything fits."""
    from tracer.runs.script_changes import SCRIPT_CHANGES

    base = _try((), card)
    print("\n".join(_words(base, card)))
    is_any = base.fits
    for change in SCRIPT_CHANGES:
        tried = _try((change,), card)
        is_any |= tried.fits
        print("\n".join(_words(tried, card, base)), flush=True)
    return is_any


def _least(card: Card) -> Tried | None:
    """The first set that fits, without what it does not need; None if none does."""
    from tracer.runs.script_changes import BF16, BF16_WEIGHTS, CHECKPOINT, EXPANDABLE, FUSED

    steps: list[tuple[ScriptChange, ...]] = [(), (EXPANDABLE, FUSED), (CHECKPOINT,), (BF16,), (BF16_WEIGHTS,)]
    changes: tuple[ScriptChange, ...] = ()
    full: set[tuple[ScriptChange, ...]] = set()
    for more in steps:
        tried = _told((*changes, *more), card)
        if tried.has_ended_before:
            continue
        # What could not be made is of no use in a larger set either.
        changes = tuple(
            change for change in tried.changes if not any(n.startswith(f"{change.name}:") for n in tried.notes)
        )
        if tried.fits:
            return _without_idle(replace(tried, changes=changes), card, full)
        full.add(changes)
    return None


def _without_idle(tried: Tried, card: Card, full: set[tuple[ScriptChange, ...]]) -> Tried:
    """The same without each change that it fits without, what gives up most first; of `full` it is known already."""
    for change in sorted(tried.changes, key=lambda change: -change.group):
        fewer = tuple(other for other in tried.changes if other is not change)
        if fewer and fewer not in full and (without := _told(fewer, card)).fits:
            tried = without
    return tried


def _try(changes: Sequence[ScriptChange], card: Card) -> Tried:
    """This command again, in a process of its own, with changes.

    Raises:
        TracerError: The script ended otherwise than for want of memory, and without any change.
    """
    from tracer.runs.script_changes import set_allocator

    names = [change.name for change in changes]
    with tempfile.TemporaryDirectory(prefix="fit-") as folder:
        answer = Path(folder) / "answer.json"
        before = dict(os.environ)
        set_allocator(changes)
        variables = {**os.environ, _TRIAL: json.dumps({"changes": names, "answer": str(answer)})}
        os.environ.clear()
        os.environ.update(before)
        done = subprocess.run(
            [sys.executable, *sys.orig_argv[1:]], env=variables, capture_output=True, text=True, check=False
        )
        if not answer.is_file():
            if changes:
                return Tried(tuple(changes), False, 0, 0, _last_said(done.stderr), has_ended_before=True)
            sys.stderr.write(done.stderr)
            raise TracerError("The script did not get to a step.", hint="What it said is above.")
        values: dict[str, Any] = json.loads(answer.read_text("utf-8"))
    return Tried(tuple(changes), values["fits"], values["allocated"], values["reserved"], tuple(values["notes"]))


def _last_said(text: str) -> tuple[str, ...]:
    """The last line of a script's own traceback, which our words follow."""
    own = [line for line in text.splitlines() if line.strip() and not line.startswith(("Error: ", "Hint: "))]
    return tuple(own[-1:])


def _told(changes: Sequence[ScriptChange], card: Card) -> Tried:
    """`_try`, which takes a while each time, with what came of it on stderr."""
    tried = _try(changes, card)
    for line in _words(tried, card):
        say(line)
    return tried


def _words(tried: Tried, card: Card, base: Tried | None = None) -> tuple[str, ...]:
    """What came of it.

    Args:
        tried: It.
        card: That it ran on.
        base: The script as it is, to compare with; None to leave that out.
    """
    what = ", ".join(change.name for change in tried.changes) or "as it is"
    if tried.fits:
        left = card.usable_bytes - tried.reserved_bytes
        came = f"fits with {format_bytes(left)} left" if left >= 0 else "fits, after the cache was given back"
        sizes = f"{format_bytes(tried.allocated_bytes)} allocated, {format_bytes(tried.reserved_bytes)} reserved"
        line = f"{what}: {sizes}{_difference(tried, base)}; {came}."
    elif tried.has_ended_before:
        line = f"{what}: the script ended with an error before a step was done."
    else:
        line = f"{what}: out of memory, with {format_bytes(tried.allocated_bytes)} allocated."
    return line, *(f"  {note}" for note in tried.notes)


def _difference(tried: Tried, base: Tried | None) -> str:
    """Of the peaks, where both have one: what ran out of memory has none."""
    if base is None or not base.fits:
        return ""
    saved_bytes = base.allocated_bytes - tried.allocated_bytes
    if saved_bytes == 0:
        return ", the same peak"
    return f", {format_bytes(abs(saved_bytes))} {'less' if saved_bytes > 0 else 'more'} at the peak"


def _try_here(
    asked: dict[str, Any], on: OnOptions, script: str, arguments: Sequence[str], *, is_module: bool, num_steps: int
) -> None:
    """Run the script with changes on the null GPU, and leave what came of it."""
    assert on.on is not None
    devices = start_on(on.on)
    from tracer.runs.applied_changes import AppliedChanges
    from tracer.runs.script_changes import script_changes

    with values_on(on.answers), AppliedChanges(script_changes(",".join(asked["changes"]))) as applied:
        answer = predict_script(script, arguments, devices, is_module=is_module, num_steps=num_steps, quiet=True)
    document = {
        "fits": bool(answer.fits),
        "allocated": answer.memory.peak_allocated_bytes,
        "reserved": answer.memory.peak_reserved_bytes,
        "notes": applied.notes,
    }
    Path(asked["answer"]).write_text(json.dumps(document), "utf-8")
