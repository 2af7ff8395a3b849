"""Trials of changes: the command again on the null GPU, in a process of its own, with changes made from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracer.commands.on_card import OnOptions, on_null_gpu, start_on
from tracer.commands.predict_on import script_trial
from tracer.commands.shared_start import SharedStart
from tracer.errors import TracerError
from tracer.exporters.screen.fit import trial_words
from tracer.exporters.screen.terminal import say, show
from tracer.null_gpu.cards import Card
from tracer.null_gpu.job.place import Place
from tracer.null_gpu.nccl_buffers import NcclBuffers
from tracer.null_gpu.writes import own_files
from tracer.results.fit import FitReport, FitTrial, RankTrial

if TYPE_CHECKING:
    from tracer.null_gpu.cards import Devices
    from tracer.results.null_job import NullJob, RankRun
    from tracer.runs.null_job import Job
    from tracer.runs.script_changes import ScriptChange

TRIAL = "TORCH_TIMELINE_FIT"
"""Variable of a process that makes one trial: the changes, and the folder that it leaves its answer in; or of one that
is asked for trials through pipes."""

_OURS = ("Error: ", "Hint: ", "Note: ", "Nothing was recorded")


def each_alone(card: Card, base: FitTrial | None = None, job: Job | None = None) -> list[FitTrial]:
    """What each change alone comes to, printed in the order of what they give up; the script as it is first.

    Args:
        base: The script as it is, where that is known and said already.
        job: The job that the script is, if it is one.

    Raises:
        TracerError: The script ended otherwise than for want of memory, and without any change.
    """
    from tracer.runs.script_changes import changes_of

    with shared_start(job) as start:
        trials = [make_trial((), job=job, start=start) if base is None else base]
        if base is None:
            show("\n".join(trial_words(trials[0], card.usable_bytes)))
        elif base.fits and base.flops is None:  # what it takes is known, and not how many operations
            trials = [replace(base, flops=make_trial((), job=job, start=start).flops)]
        for change in changes_of(is_job=job is not None):
            trials.append(make_trial((change,), job=job, start=start))
            show("\n".join(trial_words(trials[-1], card.usable_bytes, trials[0])))
        return trials


def told_alone(
    devices: Devices, own: tuple[str, ...], base: FitTrial | None = None, job: Job | None = None
) -> FitReport:
    """`--advise` of a script: what each change alone saves, with a command that trains with the first that fits.

    Args:
        base: The script as it is, where that is known and said already.
        job: The job that the script is, if it is one.

    Raises:
        TracerError: The script ended otherwise than for want of memory, and without any change.
    """
    show("\nWhat each change would save alone, made without editing the script:")
    trials = each_alone(devices.card, base, job)
    return FitReport(devices.words, devices.card.usable_bytes, own, tuple(trials), first_that_fits(trials))


def first_that_fits(trials: Sequence[FitTrial]) -> tuple[str, ...] | None:
    """Names of the changes of the first trial that fits; None if none does."""
    return next((trial.apply for trial in trials if trial.fits), None)


def shared_start(job: Job | None) -> AbstractContextManager[SharedStart | None]:
    """What trials of one process share, see `make_trial`; ranks of a job begin by themselves."""
    return nullcontext() if job is not None else SharedStart(TRIAL)


def make_trial(
    changes: Sequence[ScriptChange],
    *,
    job: Job | None = None,
    arguments: Sequence[str] = (),
    start: SharedStart | None = None,
) -> FitTrial:
    """This command again, in a process of its own, or as ranks in theirs, with changes.

    Args:
        job: The job that the script is, if it is one.
        start: Forks the process from one that has begun, where it can: imports are made once then. An answer that
            does not come so is asked of a process of its own.

    Raises:
        TracerError: The script ended otherwise than for want of memory, as it is.
    """
    names, more = tuple(change.name for change in changes), tuple(arguments)
    with tempfile.TemporaryDirectory(prefix="fit-") as name:
        folder = Path(name)
        said: tuple[str, ...] = ()
        done: NullJob | None = None
        if start is None or more or not start.answers(names, folder):
            said, done = _anew(changes, more, folder, job)
        ranks = {int(path.stem): json.loads(path.read_bytes()) for path in folder.glob("*.json")}
    if not ranks or (job is not None and said):
        if changes or more:
            return FitTrial(names, fits=False, notes=(_reason(said),), has_ended_before=True, arguments=more)
        say("\n".join(said))
        raise TracerError("The script ended before its first step.", hint="Its output is above.")
    runs: dict[int, RankRun] = {} if done is None else {run.rank: run for run in done.runs}
    beside = {} if done is None else {run.rank: run.shared_bytes + done.others_bytes(run) for run in done.runs}

    def badness(rank: int) -> tuple[bool, int, int, int]:
        """Order ranks: out of memory before all others, then by how full the card is."""
        values = ranks[rank]
        others_bytes = beside.get(rank, 0) + (runs[rank].nccl.most_bytes if rank in runs else 0)
        return not values["fits"], values["reserved"] + others_bytes, values["allocated"], -rank

    worst = max(ranks, key=badness)
    values = ranks[worst]
    return FitTrial(
        names,
        fits=all(rank["fits"] for rank in ranks.values()),
        beside_bytes=beside.get(worst, 0),
        nccl=runs[worst].nccl if worst in runs else NcclBuffers(),
        allocated_bytes=values["allocated"],
        reserved_bytes=values["reserved"],
        flops=values["flops"],
        notes=tuple(values["notes"]),
        arguments=more,
        worst_rank=None if job is None else worst,
        ranks=() if job is None else tuple(_of_rank(rank, ranks[rank]) for rank in sorted(ranks)),
    )


def _of_rank(rank: int, values: Mapping[str, Any]) -> RankTrial:
    return RankTrial(rank, values["fits"], values["allocated"], values["reserved"])


def _anew(
    changes: Sequence[ScriptChange], arguments: Sequence[str], folder: Path, job: Job | None
) -> tuple[tuple[str, ...], NullJob | None]:
    """The trial from the start; what was said if it failed, and the job, if it is one."""
    from tracer.runs.script_changes import ALLOCATOR_SETTINGS, set_allocator

    names = [change.name for change in changes]
    variables = {TRIAL: json.dumps({"changes": names, "arguments": arguments, "folder": str(folder)})}
    variables |= {key: os.environ[key] for key in (ALLOCATOR_SETTINGS,) if key in os.environ}
    set_allocator(changes, variables)
    return _run_command(variables) if job is None else _run_ranks(job, variables)


def _run_command(variables: Mapping[str, str]) -> tuple[tuple[str, ...], None]:
    """Return the lines that the command printed if it failed."""
    from tracer.runs.child_processes import ChildProcesses

    command = [sys.executable, *sys.orig_argv[1:]]
    with tempfile.TemporaryFile() as said:
        status = ChildProcesses().run(
            lambda: subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=said)
        )
        said.seek(0)
        lines = said.read().decode(errors="replace").splitlines()
    return _said(lines) if status else (), None


def _run_ranks(job: Job, variables: Mapping[str, str]) -> tuple[tuple[str, ...], NullJob]:
    """Return the lines of a rank that failed, and the job."""
    from tracer.runs.null_job import run_job

    said: list[str] = []
    before = {key: os.environ.get(key) for key in variables}
    os.environ.update(variables)
    try:
        done = run_job(job, None, tell=said.append, is_first_seen=False)
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
    return (_said([line[2:] for line in said if line.startswith("  ")]) if done.status else ()), done


def _said(lines: Sequence[str]) -> tuple[str, ...]:
    """A script's own traceback, without our words behind it."""
    own = tuple(line for line in lines if line.strip() and not line.startswith(_OURS))
    return own or ("It printed nothing.",)


def _reason(said: Sequence[str]) -> str:
    """The line with the exception's name: some messages of torch's have many lines behind it."""
    begins = [row for row, line in enumerate(said) if line.startswith("Traceback (")]
    behind = said[begins[-1] + 1 :] if begins else ()
    return next((line for line in behind if not line[0].isspace()), said[-1])


def asked_trial() -> dict[str, Any] | None:
    """What this process was asked to try; None in one that was not begun for a trial."""
    asked = os.environ.get(TRIAL)
    return None if asked is None else json.loads(asked)


def answer_trial(
    asked: Mapping[str, Any],
    card: str,
    on: OnOptions,
    script: str,
    arguments: Sequence[str],
    *,
    is_module: bool,
    num_steps: int = 0,
) -> None:
    """Run the script with changes on the null GPU, and leave what came of it.

    Args:
        asked: What `asked_trial` returned.
        card: The GPU, as `--on` names it.
        script: Its path, or a module's name.
        num_steps: Number of steps that are run; 0 for as many as it takes until memory repeats.

    Raises:
        TracerError: There is no such script, or nothing was found in it.
    """
    start_on(card)
    from tracer.runs.applied_changes import AppliedChanges
    from tracer.runs.child_processes import end_with_parent
    from tracer.runs.forked_trials import ForkedTrials
    from tracer.runs.script_changes import script_changes
    from tracer.runs.trial_channel import Channel

    def tried(applied: AppliedChanges, more: Sequence[str]) -> dict[str, Any]:
        counted = script_trial(script, [*arguments, *more], is_module=is_module, num_steps=num_steps)
        sizes = counted.sizes
        return {
            "fits": counted.has_fit,
            "allocated": sizes.peak_allocated_bytes,
            "reserved": sizes.peak_reserved_bytes,
            "flops": counted.flops,
            "notes": applied.notes,
        }

    end_with_parent()
    with on_null_gpu(on, None, quiet=True):
        if "requests" in asked:
            with ForkedTrials(Channel(asked["requests"], asked["replies"])) as trials:
                document = tried(trials.applied, ())
                if trials.folder is not None:
                    _leave(document, trials.folder)
        else:
            with AppliedChanges(script_changes(",".join(asked["changes"]))) as applied:
                _leave(tried(applied, asked["arguments"]), Path(asked["folder"]))


def _leave(document: Mapping[str, Any], folder: Path) -> None:
    place = Place.here()
    with own_files():
        (folder / f"{place.rank if place is not None else 0}.json").write_text(json.dumps(document), "utf-8")
