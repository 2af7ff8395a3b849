"""A job on GPUs that are not there: the command once for each rank that can differ, each in a process of its own."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from tracer.answers.files import RANK_JSON
from tracer.answers.jobs import NullJob, RankRun
from tracer.errors import UsageError
from tracer.exporters.files import write_atomically
from tracer.exporters.screen.console import Console
from tracer.null_gpu import process
from tracer.null_gpu.cards import Devices
from tracer.null_gpu.job.place import (
    RankPlace,
    earlier_ranks_are_asked_for,
    earlier_ranks_by,
    groups_left,
    nccl_left,
    ranks_that_differ,
    shared_bytes_left,
    taken_left,
)
from tracer.sessions.jobs.child_processes import ChildProcesses, end_with_parent
from tracer.sessions.jobs.ranks import RanksSummary, message_of, rank_folder, read_ranks, write_ranks
from tracer.sessions.termination import Termination
from tracer.units import format_bytes

OUTPUT: Final = "output.txt"
_LAST_LINES: Final = 12


@dataclass(frozen=True, slots=True)
class Job:
    """The request."""

    devices: Devices  # One for each rank
    per_node: int  # How many ranks a node has
    ranks: tuple[int, ...] | None = None  # Ranks to run; None for those that can differ
    # The ranks that run at this moment.
    processes: ChildProcesses = field(default_factory=ChildProcesses, compare=False, repr=False)
    # Folder of a job that runs more than once; None for a folder of this run alone.
    folder: Path | None = field(default=None, compare=False, repr=False)
    role: Mapping[str, object] = field(default_factory=dict, compare=False)  # Further parts of each rank's role
    variables: Mapping[str, str] = field(default_factory=dict, compare=False)  # Further environment variables of each
    # Runs a rank in a process that has begun before, unless it has to begin anew.
    shared: Callable[[RankPlace, Mapping[str, str]], bool] | None = field(default=None, compare=False, repr=False)

    save_dir: Path | None = None  # Where the ranks write, each to a folder of its own; None if they write nothing

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.devices.count

    def check(self) -> None:
        """Check that there are the ranks that are named."""
        if wrong := [rank for rank in self.ranks or () if not 0 <= rank < self.world_size]:
            raise UsageError(
                f"A job of {self.world_size:,} ranks has no rank {wrong[0]}.",
                hint=f"Name ranks from 0 to {self.world_size - 1}.",
            )


@contextmanager
def as_rank(place: RankPlace) -> Iterator[None]:
    """Within the block the program finds the job that this process is a rank of."""
    from tracer.null_gpu.job.lone_rank import lone_rank

    end_with_parent()
    with lone_rank(place):
        yield


def run_job(job: Job, console: Console, *, is_first_seen: bool = True, is_limited: bool = True) -> NullJob:
    """Start the running command again as each rank: the first alone and seen, the others side by side and in files.

    Which others are worth it follows from the process groups of the first.

    Args:
        is_first_seen: Whether what the first one prints on stdout is printed.
        is_limited: Whether memory ends where the card's does: a rank of a GPU that is full with what others take of it,
            and with the least that NCCL's buffers were seen to take, runs again then.
    """
    job.check()
    with ExitStack() as stack:
        stack.enter_context(closing(termination := Termination()))
        termination.watch()
        folder = job.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="null-gpu-job-")))
        for path in (*folder.iterdir(), *folder.glob("rank*/*")):  # what a shared process of theirs has written stays
            if path.is_file():
                path.unlink()
        first = min(job.ranks) if job.ranks else 0
        run = _JobRun(job, folder, console)
        runs = run.first(first, is_seen=is_first_seen)
        others = run.others(first, has_failed=bool(runs[-1].status))
        if others:
            listed = ", ".join(f"{rank:,}" for rank in others)
            console.say(f"Rank {first} ran. So do {listed}, which can differ from it ({run.why()}).")
        runs += run.side_by_side(others)
        ranks = [ran.rank for ran in runs]
        summary = read_ranks(folder, job.world_size, ranks=ranks)
        ran = tuple(_with_results(one, folder, summary) for one in runs)
        has_trained = any(run.peak_bytes is not None for run in ran)
        is_distributed = bool(groups_left(folder, first)) or not has_trained
        answer = NullJob(job.devices, job.per_node, ran, is_distributed)
        if is_limited and (again := run.where_full(answer)) is not None:
            summary = read_ranks(folder, job.world_size, ranks=ranks)
            again = _with_results(again, folder, summary)
            answer = replace(answer, runs=tuple(_again(ran, again) for ran in answer.runs))
    if job.save_dir is not None:
        write_ranks(summary, job.save_dir)
    return answer


def _again(run: RankRun, again: RankRun) -> RankRun:
    """A rank's run, with what came of its later one beside others; what it takes is of the first, which had room."""
    if run.rank != again.rank:
        return run
    return replace(
        run,
        status=again.status,
        failure=again.failure,
        out_of_memory=again.out_of_memory,
        line=again.line,
        crowded=again.crowded,
    )


@dataclass(frozen=True, slots=True)
class _JobRun:
    job: Job
    folder: Path  # Where ranks leave what they have to say
    console: Console

    def first(self, rank: int, *, is_seen: bool) -> list[RankRun]:
        """This command as a rank, and as rank 0 before it goes on, if it waits for what that says."""
        earlier: list[RankRun] = []

        def run_rank_0() -> None:
            self.console.say(f"Rank {rank} waits for what others tell it. So rank 0 runs before it goes on.")
            earlier.append(self.unseen(0))

        with earlier_ranks_by(run_rank_0, self.folder) if rank else nullcontext():
            ran = self._run(rank)[0] if is_seen else self.unseen(rank)
        return [*earlier, ran]

    def others(self, first: int, *, has_failed: bool) -> list[int]:
        """The ranks to run beside the first."""
        if self.job.ranks is not None:
            return sorted(set(self.job.ranks) - {first})
        if not (groups := groups_left(self.folder, 0)):
            return [] if has_failed else [self.job.per_node - 1]  # alike, but for the GPU that it takes
        return ranks_that_differ(groups, self.job.world_size)[1:]

    def why(self) -> str:
        """Why the others run."""
        if self.job.ranks is not None:
            return "by --rank"
        groups = groups_left(self.folder, 0)
        return "by its process groups: the middle and the end of each" if groups else "by its GPU alone"

    def side_by_side(self, ranks: Sequence[int]) -> list[RankRun]:
        """Run ranks in order of their numbers, as many at a time as processors and the first one's memory allow."""
        if not ranks:
            return []
        first_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        at_once = max(1, min(len(ranks), os.cpu_count() or 1, free_bytes // max(first_bytes, 1)))
        with ThreadPoolExecutor(at_once) as pool:
            try:
                return list(pool.map(self.unseen, ranks))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.job.processes.end()
                raise

    def where_full(self, answer: NullJob) -> RankRun | None:
        """Run a rank again whose GPU is full with what others take of it: torch says where that ends, if it does.

        Others are the ranks whose own GPU it is not, and NCCL. Of the ranks that have memory on the GPU, the one that
        has most on a GPU of another rank's runs first, then the one whose GPU it is.

        Returns:
            The rank that ran out of memory so; else the one whose GPU it is; None where all GPUs have room.
        """
        if any(run.out_of_memory or run.status for run in answer.runs):
            return None
        gpu, again = answer.fullest, None
        if gpu is None:
            return None
        sum_bytes = gpu.least_bytes
        if sum_bytes <= self.job.devices.card.memory_bytes:
            return None
        for holding in (*gpu.guests, *filter(None, [gpu.own])):
            if holding.is_assumed:
                continue
            others_bytes = sum_bytes - holding.bytes
            others = format_bytes(others_bytes)
            self.console.say(
                f"GPU {gpu.index} is full. So rank {holding.rank} runs again, beside {others} of others there."
            )
            (rank_folder(self.folder, holding.rank) / RANK_JSON).unlink(missing_ok=True)
            again = self.unseen(holding.rank, taken={gpu.index: others_bytes})
            again = replace(again, crowded=(gpu.index, others_bytes))
            if (left := message_of(self.folder, holding.rank)) is not None and left.out_of_memory:
                return again
        return again

    def unseen(self, rank: int, *, taken: Mapping[int, int] | None = None) -> RankRun:
        """This command as a rank; what it prints goes to a file, and of one that has failed the last lines are told."""
        ran, text = self._run(rank, taken, is_seen=False)
        if self.job.save_dir is not None:
            write_atomically(rank_folder(self.job.save_dir, rank) / OUTPUT, text)
        ended = "done" if ran.status == 0 else f"ended with status {ran.status}"
        self.console.say(f"Rank {rank} of {self.job.world_size:,}: {ended} after {ran.seconds:.0f} s.")
        if ran.status < 0 or (ran.status and self.job.save_dir is None):
            for line in text.splitlines()[-_LAST_LINES:]:
                self.console.say(f"  {line}")
        return ran

    def _run(self, rank: int, taken: Mapping[int, int] | None = None, *, is_seen: bool = True) -> tuple[RankRun, str]:
        """This command as a rank, and what it printed where that is not seen; others take so many bytes by GPU."""
        job = self.job
        place = RankPlace(rank, job.world_size, job.per_node, self.folder)
        cards = [job.devices.card] * min(job.per_node, job.world_size)
        variables = process.environment(cards, taken=taken) | dict(job.variables) | place.variables(**job.role)
        began = time.monotonic()
        if job.shared is not None and not is_seen and not taken and job.shared(place, variables):
            return RankRun(rank, 0, time.monotonic() - began), ""
        may_wait = partial(earlier_ranks_are_asked_for, self.folder)
        ended = job.processes.run_again(variables, is_seen=is_seen, may_wait=may_wait)
        return RankRun(rank, ended.status, time.monotonic() - began), ended.text


def _with_results(run: RankRun, folder: Path, summary: RanksSummary) -> RankRun:
    """Add the peak that the rank left, its memory on each GPU, and the error that ended it."""
    run = replace(
        run,
        nccl=nccl_left(folder, run.rank),
        shared_bytes=shared_bytes_left(folder, run.rank),
        taken=taken_left(folder, run.rank),
    )
    peak = next((peak for peak in summary.ranks if peak.index == run.rank), None)
    if peak is None:
        return run
    return replace(
        run,
        peak_bytes=peak.peak_bytes,
        reserved_bytes=peak.reserved_bytes,
        categories=peak.categories,
        lines={int(part.gpu): part.source_line for part in peak.held if part.source_line is not None},
        failure=peak.failure,
        out_of_memory=peak.out_of_memory,
        line=peak.line,
    )
