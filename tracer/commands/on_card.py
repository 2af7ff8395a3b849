"""`--on CARD`: the command starts itself again on the null GPU, where torch's CUDA code runs without a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tracer.errors import UsageError
from tracer.exporters.screen.console import Console
from tracer.null_gpu import process
from tracer.null_gpu.cards import MAX_DEVICES, Devices, devices_of
from tracer.null_gpu.job.place import RankPlace
from tracer.null_gpu.values.answers import Answer, parse_answer
from tracer.units import MAX_RANKS, parse_count, shortened

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from tracer.sessions.jobs.run_ranks import Job


@dataclass(frozen=True, kw_only=True)
class OnOptions:
    """A GPU that is not here, and what its values are; see the options of these names."""

    on: str | None = None
    answer: Sequence[str] | None = None
    per_node: int = 8
    rank: str | None = None
    one_process: bool = False

    @property
    def job(self) -> Job | None:
        """The job that `--on` names; None where it names one GPU, or all are of one process."""
        devices = devices_of(self.on) if self.on is not None else None
        if devices is not None and self.one_process and devices.count > MAX_DEVICES:
            raise UsageError(f"{self.on}: a process sees 1 to {MAX_DEVICES} GPUs.", hint="Leave out --one-process.")
        if devices is None or devices.count == 1 or self.one_process:
            if self.rank is not None:
                raise UsageError("--rank works only for a job.", hint="Add --on with a job, such as --on 128xh100.")
            return None
        from tracer.sessions.jobs.run_ranks import Job

        if self.per_node > MAX_DEVICES:
            raise UsageError(f"A process sees {MAX_DEVICES} GPUs at most.", hint=f"Write --per-node {MAX_DEVICES}.")
        try:
            ranks = None if self.rank is None else {parse_count(part, most=MAX_RANKS) for part in self.rank.split(",")}
        except ValueError:
            words = f"{shortened(self.rank or '')} is no list of ranks."
            raise UsageError(words, hint="Write --rank 0,7,64.") from None
        return Job(devices, min(self.per_node, devices.count), None if ranks is None else tuple(sorted(ranks)))

    @property
    def answers(self) -> dict[tuple[str, int], Answer]:
        """Values of `--answer`, by file and line."""
        if self.answer and self.on is None:
            raise UsageError("--answer works only with --on.", hint="Add --on with a GPU, such as --on h100.")
        return dict(map(parse_answer, self.answer or ()))


_TORCHRUN = "TORCHELASTIC_RUN_ID"
"""A variable that torchrun alone sets."""
WARNING = "losses and other values that the program prints mean nothing"


def start_on(text: str) -> Devices:
    """Go on in a process that runs on these devices: this one is replaced by it, unless it is that already."""
    devices = devices_of(text)
    if not process.is_active():
        process.restart_on([devices.card] * devices.count)
    return devices


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of a command: where, with which folder for its results, and what it says; made once and handed down."""

    place: OnOptions
    console: Console
    save_dir: Path | None = None  # Folder of the results; None for none
    status_if_full: int = 0  # Exit status of a job whose ranks end well, and NCCL's buffers do not fit beside them

    @property
    def computes(self) -> bool:
        """True if the run computes: not on a GPU that is not here."""
        return self.place.on is None

    def as_job(self) -> None:
        """Run the command as the ranks of the job that `--on` names, if it names one, and exit with their status."""
        job, on = self.place.job, self.place.on
        if job is None or RankPlace.here() is not None:
            return
        from tracer.sessions.jobs.ranks import this_rank

        if _TORCHRUN in os.environ and (rank := this_rank()) is not None:
            raise UsageError(
                f"torchrun has started this command as {rank.world_size:,} ranks, and --on {on} starts ranks itself.",
                hint="Leave torchrun out; or, with `run`, add --one-process, so that each of its ranks has the GPUs.",
            )
        from tracer.answers.answer_of_job import answer_of_null_job
        from tracer.exporters.json_documents.job import null_job_json
        from tracer.exporters.screen.answer import print_answer
        from tracer.exporters.screen.text import say as say_on
        from tracer.sessions.jobs.run_ranks import run_job

        console = self.console
        result = run_job(replace(job, save_dir=self.save_dir), console, is_first_seen=not console.as_json)

        def draw(rich: RichConsole) -> None:
            say_on(rich)
            print_answer(answer_of_null_job(result), rich)

        console.answer(lambda: null_job_json(result), draw)
        raise typer.Exit(result.status or (self.status_if_full if result.fits is False else 0))

    def start(self) -> Devices | None:
        """Go on in a process that runs on the GPU that `--on` names; None without it."""
        return start_on(self.place.on) if self.place.on is not None else None

    def say_where(self, devices: Devices | None) -> None:
        """Say the first line of a run on the null GPU."""
        if devices is not None:
            self.console.say(f"Null GPU ({devices.words}): memory is torch's own, nothing was computed; {WARNING}.")

    @contextmanager
    def on_null_gpu(self) -> Iterator[None]:
        """Within the block a program runs as on the card that `--on` names; no-op without the null GPU.

        Values that decide sizes are computed, a rank finds what others gave it, and its files go to a folder of the
        run.
        """
        from tracer.sessions.on_null_gpu import program_runs

        with ExitStack() as around:
            if (place := RankPlace.here()) is not None:
                from tracer.sessions.jobs.run_ranks import as_rank

                around.enter_context(as_rank(place))
            around.enter_context(program_runs(self.place.answers, self.save_dir, self.console))
            yield
