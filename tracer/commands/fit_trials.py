"""Trials of changes: the command again on the null GPU, with changes made from outside, and its answer there."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tracer.answers.prediction import FitTrial, RankTrial
from tracer.capture.objects.later_uses import LaterUses
from tracer.command_line import in_role
from tracer.commands.on_card import OnOptions, Run, start_on
from tracer.commands.script import Script
from tracer.commands.script_steps import script_trial
from tracer.errors import SnapshotError, TracerError
from tracer.exporters.screen.console import QUIET, Console
from tracer.exporters.screen.terminal import say
from tracer.null_gpu.job.place import RankPlace, earlier_ranks_are_asked_for
from tracer.null_gpu.nccl_buffers import NcclBuffers
from tracer.sessions.jobs.child_processes import ChildProcesses
from tracer.sessions.trials.trial_channel import TrialRequest, TrialServer, history_name, uses_name

if TYPE_CHECKING:
    from tracer.answers.allocator.explained import Explanation
    from tracer.answers.jobs import NullJob, RankRun
    from tracer.sessions.jobs.run_ranks import Job
    from tracer.sessions.trials.forked_trials import TrialMemory
    from tracer.workloads.workload import Workload


_MOST_SHARED = 8
"""Ranks whose processes wait for the next trial: each keeps what it has loaded in memory."""
_NEED_LIMIT_S = 300
"""Seconds of a processor for the run of the script as it is without a limit of memory."""
_MOST_TIMES = 8
"""Times that all trials together take what the script as it is takes, at most."""
_TRACEBACK, _NOTHING_PRINTED = "Traceback (", "It printed nothing."
_OWN_LINES = ("Error: ", "Hint: ", "Note: ", "Nothing was recorded")


class NoTimeLeftError(Exception):
    """Trials have taken what they may of a processor."""


@dataclass
class ScriptTrials:
    """Makes trials of this command, or of each rank: forks of one process, where they can be, see `ForkedTrials`."""

    usable_bytes: int  # Memory of the card without the context
    job: Job | None = None  # The job that the script is, if it is one
    _most_s: float = 0.0  # Seconds of a processor for all trials; 0 for as many as there are
    _end: ExitStack = field(default_factory=ExitStack)
    _starts: dict[int, TrialServer] = field(default_factory=dict)  # By rank; a script of one process is rank 0
    _beginning: ThreadPoolExecutor | None = None  # Begins the processes of ranks, which end with its thread

    def __enter__(self) -> Self:
        if self.job is None:
            self._starts[0] = self._end.enter_context(closing(TrialServer()))
        else:
            self._beginning = self._end.enter_context(ThreadPoolExecutor(1))
            folder = self._end.enter_context(tempfile.TemporaryDirectory(prefix="null-gpu-job-"))
            self.job = replace(self.job, folder=Path(folder))
        return self

    def __exit__(self, *_: object) -> None:
        self._starts.clear()
        self._end.close()

    def make(self, changes: Sequence[str] = (), arguments: Sequence[str] = ()) -> FitTrial:
        """Try whether the script fits with changes, and find how much it needs where memory does not end.

        The script as it is runs on the card first, where it may make do with less, and its failure is explained. With
        changes it does so where the allocator could serve it by giving back what it has cached.

        Raises:
            NoTimeLeftError: Trials have taken what they may.
        """
        more = tuple(arguments)
        if not changes:
            on_card = self._attempt(changes, more, is_limited=True, is_explained=not more)
            if on_card.fits or on_card.has_ended_before:
                return on_card
            need = self._attempt(changes, more, is_limited=False)
            if need.has_ended_before or not need.fits:
                notes = tuple(
                    f"How much it needs is not known, for with enough memory it ended: {note}" for note in need.notes
                )
                return replace(on_card, is_whole=False, notes=(*on_card.notes, *notes))
            return replace(
                need,
                fits=False,
                failed_in=on_card.failed_in,
                failed_at_bytes=on_card.failed_at_bytes,
                explanation=on_card.explanation,
            )
        need = self._attempt(changes, more, is_limited=False, limit_s=self._left_s())
        room_bytes = self.usable_bytes - need.beside_bytes
        if need.has_ended_before or (need.fits and need.reserved_bytes <= room_bytes):
            return need
        if need.allocated_bytes > room_bytes:
            return replace(need, fits=False)
        return replace(need, fits=self._attempt(changes, more, is_limited=True).fits)

    def used_s(self) -> float:
        """Seconds of a processor that trials have taken so far."""
        times = os.times()
        return times.children_user + times.children_system + sum(start.used_s for start in self._starts.values())

    def limit(self) -> None:
        """Have all trials together take no more than some times as long as those so far, and look for what fits alone.

        Then one that does not fit ends with the step that shows it.
        """
        self._most_s = _MOST_TIMES * self.used_s()

    def _left_s(self) -> int:
        left_s = math.ceil(self._most_s - self.used_s()) if self._most_s else 0
        if self._most_s and left_s <= 0:
            raise NoTimeLeftError
        return left_s

    def need(self, limit_s: int = 0, *, follow: tuple[int, int, int] | None = None) -> FitTrial:
        """Run the script as it is where memory does not end: it may never come to the end of a step.

        Args:
            limit_s: Seconds of a processor after which that is given up; 0 for `_NEED_LIMIT_S`.
            follow: A failed request, behind which blocks are followed, see `TrialRequest`.
        """
        return self._attempt((), (), is_limited=False, limit_s=limit_s, follow=follow)

    def record(self, arguments: Sequence[str], read: Callable[[Path], None]) -> FitTrial:
        """Run with these arguments where memory does not end; the fullest rank's history is read from its file."""
        return self._attempt((), tuple(arguments), is_limited=False, read=read)

    def _attempt(
        self,
        changes: Sequence[str],
        more: tuple[str, ...],
        *,
        is_limited: bool,
        is_explained: bool = False,
        limit_s: int = 0,
        follow: tuple[int, int, int] | None = None,
        read: Callable[[Path], None] | None = None,
    ) -> FitTrial:
        from tracer.changes.script_changes import allocator_variables

        names = tuple(changes)
        room_bytes = self.usable_bytes if self._most_s else sys.maxsize
        limit_s = limit_s or (0 if is_limited or names else _NEED_LIMIT_S)
        with tempfile.TemporaryDirectory(prefix="fit-") as name:
            folder = Path(name)
            is_recorded = read is not None
            request = TrialRequest(
                names, name, more, is_limited, limit_s, follow, is_explained, is_recorded, room_bytes
            )
            said: tuple[str, ...] = ()
            error: TracerError | None = None
            done: NullJob | None = None
            parts, variables = {"trial": asdict(request)}, allocator_variables(changes)
            if self.job is not None:
                shared = None if more else partial(self._runs_rank, request)
                job = replace(self.job, shared=shared, role=parts, variables=variables)
                said, error, done = _run_ranks(job, is_limited=is_limited)
            elif more or (start := self._starts.get(0)) is None or not start.answers(request):
                if more or start is None or (output := start.output(request)) is None:
                    ended = ChildProcesses().run_again({**os.environ, **variables, **in_role(**parts)})
                    output = ended.text if ended.status else ""
                said, error = _said(output.splitlines())
            ranks = {int(path.stem): json.loads(path.read_bytes()) for path in folder.glob("*.json")}
            worst = _worst(ranks, done) if ranks else 0
            history = folder / history_name(worst)
            if read is not None and history.exists():
                read(history)
            explanation = _explanation(history) if read is None else None
            uses = _uses(folder / uses_name(worst))
        if not ranks or (self.job is not None and said):
            if changes or more or not is_limited:
                notes = tuple(filter(None, [_reason(said), str(error or "")])) or (_NOTHING_PRINTED,)
                return FitTrial(names, fits=False, notes=notes, has_ended_before=True, arguments=more, uses=uses)
            if said or error is None:
                say("\n".join(said or [_NOTHING_PRINTED]))
            if error is not None:
                raise error
            raise TracerError("The script ended before its first step.", hint="Its output is above.")
        return replace(_of_worst(worst, ranks, done), apply=names, arguments=more, explanation=explanation, uses=uses)

    def _runs_rank(self, request: TrialRequest, place: RankPlace, variables: Mapping[str, str]) -> bool:
        """Make a rank's trial in a fork of its process; False if a new process has to make it."""
        start = self._starts.get(place.rank)
        if start is None:
            if len(self._starts) >= _MOST_SHARED:
                return False
            may_wait = partial(earlier_ranks_are_asked_for, place.folder)
            server = TrialServer(place.variables, variables, rank=place.rank, may_wait=may_wait)
            start = self._end.enter_context(closing(server))
            self._starts[place.rank] = start
            assert self._beginning is not None
            self._beginning.submit(start.begin).result()
        return start.answers(request)


def _worst(ranks: Mapping[int, dict[str, Any]], job: NullJob | None) -> int:
    """The rank whose answer counts for all; a script of one process is rank 0."""
    runs: dict[int, RankRun] = {} if job is None else {run.rank: run for run in job.runs}

    def badness(rank: int) -> tuple[bool, int, int, int]:
        """Order ranks: out of memory before all others, then by how full the card is."""
        values = ranks[rank]
        others_bytes = _beside_bytes(rank, job) + (runs[rank].nccl.most_bytes if rank in runs else 0)
        return not values["fits"], values["reserved"] + others_bytes, values["allocated"], -rank

    return max(ranks, key=badness)


def _beside_bytes(rank: int, job: NullJob | None) -> int:
    """Symmetric memory and what other ranks take of a rank's card."""
    own = (gpu for gpu in (job.gpus if job is not None else ()) if gpu.own is not None and gpu.own.rank == rank)
    return next((gpu.beside_bytes(rank) + gpu.own.shared_bytes for gpu in own if gpu.own is not None), 0)


def _of_worst(worst: int, ranks: Mapping[int, dict[str, Any]], job: NullJob | None) -> FitTrial:
    """Sum up the answers of ranks, by their numbers."""
    values = ranks[worst]
    nccl = NcclBuffers() if job is None else next((run.nccl for run in job.runs if run.rank == worst), NcclBuffers())
    failed_in = None if values["fits"] else -1 if values["built"] is None else values["steps"]
    return FitTrial(
        (),
        fits=all(rank["fits"] for rank in ranks.values()),
        allocated_bytes=values["allocated"],
        reserved_bytes=values["reserved"],
        notes=tuple(values["notes"]),
        worst_rank=None if job is None else worst,
        ranks=()
        if job is None
        else tuple(
            RankTrial(rank, ranks[rank]["fits"], ranks[rank]["allocated"], ranks[rank]["reserved"])
            for rank in sorted(ranks)
        ),
        beside_bytes=_beside_bytes(worst, job),
        nccl=nccl,
        flops=values["flops"],
        pinned_bytes=max(rank["pinned"] for rank in ranks.values()),
        built_bytes=values["allocated"] if values["built"] is None else values["built"],
        is_whole=not values["cut"],
        num_steps=values["steps"],
        growth_bytes=values["growth"],
        failed_in=failed_in,
        failed_at_bytes=0 if values["fits"] else values["allocated"],
    )


def _explanation(path: Path) -> Explanation | None:
    """Read what a recording says, if there is one; the trial's answer stands without it."""
    if not path.exists():
        return None
    from tracer.answers.allocator.explained import explanation_of
    from tracer.snapshot.load import load_snapshot

    try:
        return explanation_of(load_snapshot(path))
    except SnapshotError as error:
        say(f"Note: Why memory ran out is not known: {error}")
        return None


def _uses(path: Path) -> LaterUses | None:
    """Read how blocks were used behind a failure, if that was followed."""
    if not path.exists():
        return None
    from tracer.exporters.document import Document, Source

    source = Source("The uses of blocks", SnapshotError, hint="")
    return Document(json.loads(path.read_bytes()), source).record(LaterUses)


def _run_ranks(job: Job, *, is_limited: bool) -> tuple[tuple[str, ...], TracerError | None, NullJob]:
    from tracer.sessions.jobs.run_ranks import run_job

    said: list[str] = []
    # A trial that fits says how much is left for NCCL.
    done = run_job(job, Console.writing_to(said.append), is_first_seen=False, is_limited=is_limited)
    words, error = _said([line[2:] for line in said if line.startswith("  ")]) if done.status else ((), None)
    return words, error, done


def _said(lines: Sequence[str]) -> tuple[tuple[str, ...], TracerError | None]:
    """A script's own lines; and our error behind them, where the script has printed no traceback that says why."""
    own = tuple(line for line in lines if line.strip() and not line.startswith(_OWN_LINES))
    ours = {begin: next((line for line in reversed(lines) if line.startswith(begin)), "") for begin in _OWN_LINES[:2]}
    sentence, hint = (line.removeprefix(begin) for begin, line in ours.items())
    if not sentence or any(line.startswith(_TRACEBACK) for line in own):
        return own, None
    return own, TracerError(sentence, hint=hint)


def _reason(said: Sequence[str]) -> str:
    """The line with the exception's name, or the last line; some messages of torch's have many lines behind it."""
    begins = [row for row, line in enumerate(said) if line.startswith(_TRACEBACK)]
    behind = said[begins[-1] + 1 :] if begins else ()
    return next((line for line in behind if not line[0].isspace()), said[-1] if said else "")


def answer_trial(asked: Mapping[str, Any], card: str, on: OnOptions, script: Script) -> None:
    """Run the script with changes on the null GPU, as a request or through pipes, and leave what came of it."""
    devices, run = start_on(card), Run(place=on, console=QUIET)
    from tracer.changes.applied import AppliedChanges
    from tracer.sessions.jobs.child_processes import end_with_parent
    from tracer.sessions.trials.forked_trials import ForkedTrials, TrialMemory
    from tracer.sessions.trials.trial_channel import Channel
    from tracer.sessions.trials.use_watch import UseWatch

    def tried(applied: AppliedChanges, more: Sequence[str]) -> dict[str, Any]:
        with_more = script._replace(arguments=[*script.arguments, *more])
        at_end = memory.keep if asked.get("is_recorded") else None
        counted = script_trial(
            with_more,
            at_growth=memory.keep,
            at_end=at_end,
            uses=uses,
            room_bytes=lambda: memory.room_bytes,
        )
        if counted.num_steps:  # the hook that ends the script may be before that of the changes
            applied.step_ended()
        return {
            "fits": counted.has_fit,
            "allocated": counted.sizes.peak_allocated_bytes,
            "reserved": counted.sizes.peak_reserved_bytes,
            "built": counted.built_bytes,
            "steps": counted.num_steps,
            "growth": counted.growth_bytes,
            "flops": counted.flops,
            "pinned": counted.pinned_bytes,
            "cut": counted.is_cut,
            "notes": applied.notes,
        }

    def leave_uses(*, is_to_the_end: bool) -> None:
        from tracer.exporters.files import write_json

        found = uses.found(is_to_the_end=is_to_the_end) if uses is not None else None
        if found is not None:
            write_json(Path(asked["folder"]) / uses_name(0), asdict(found))

    end_with_parent()
    uses = None
    memory = TrialMemory(devices.count)
    if "requests" in asked:
        with ForkedTrials(Channel(**asked), memory.begin) as trials, run.on_null_gpu(), closing(memory):
            trials.look_out()
            answer = tried(trials.applied, ())
            if trials.folder is not None:
                _leave(answer, memory, trials.folder)
    else:
        request = TrialRequest.of(asked)
        with run.on_null_gpu(), closing(memory):
            memory.begin(request)
            if request.follow is not None:
                uses = UseWatch(*request.follow, when_done=partial(leave_uses, is_to_the_end=False))
            with uses or nullcontext(), AppliedChanges(request.changes) as applied:
                answer = tried(applied, request.arguments)
            if uses is not None and not uses.is_done:
                leave_uses(is_to_the_end=True)
            if request.is_recorded:
                memory.keep_whole()
            _leave(answer, memory, Path(request.folder))


def _leave(answer: dict[str, Any], memory: TrialMemory, folder: Path) -> None:
    from tracer.exporters.files import write_json
    from tracer.sessions.trials.trial_channel import answer_name, history_name

    place = RankPlace.here()
    rank = place.rank if place is not None else 0
    memory.write(folder / history_name(rank))
    write_json(folder / answer_name(rank), answer)


def answer_workload_trial(
    asked: Mapping[str, Any], card: str, on: OnOptions, build: Callable[[Sequence[str]], Callable[[], Workload]]
) -> None:
    """Train a workload, built with the trial's arguments, and leave its peaks and the allocator's history."""
    devices, run = start_on(card), Run(place=on, console=QUIET)
    from tracer.sessions.jobs.child_processes import end_with_parent
    from tracer.sessions.trials.forked_trials import TrialMemory
    from tracer.sessions.trials.null_gpu_prediction import train
    from tracer.sessions.trials.script_trial import sizes_of

    end_with_parent()
    request, memory = TrialRequest.of(asked), TrialMemory(devices.count)
    with run.on_null_gpu(), closing(memory):
        memory.begin(request)
        num_steps = train(build(request.arguments))
        memory.keep_whole()
        sizes = sizes_of("cuda:0")
        peaks = {"allocated": sizes.peak_allocated_bytes, "reserved": sizes.peak_reserved_bytes, "steps": num_steps}
        unknown: dict[str, Any] = {"built": 0, "growth": 0, "flops": None, "pinned": 0, "cut": False, "notes": []}
        _leave({"fits": True, **peaks, **unknown}, memory, Path(request.folder))
