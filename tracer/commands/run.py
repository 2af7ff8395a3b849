"""`torch-timeline run`: an unchanged script, profiled while it trains."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracer.answers.files import PHASES_JSON, RANKS_TEXT
from tracer.command_line import flush_output, role
from tracer.commands import options as opt
from tracer.commands.common import errors_for_people, kept_import_path, say_all, was_given
from tracer.commands.engines import answer_engine, engine_command, tell_reports
from tracer.commands.launchers import script_named
from tracer.commands.on_card import OnOptions, Run
from tracer.commands.options import option
from tracer.commands.script import BEFORE_SCRIPT, Script, child_profiled, run_script
from tracer.commands.workload_options import check_device
from tracer.errors import Terminated
from tracer.exporters.screen.console import QUIET, Console
from tracer.exporters.screen.terminal import say
from tracer.exporters.screen.text import say as say_on
from tracer.null_gpu.job.place import RankPlace
from tracer.units import some

if TYPE_CHECKING:
    import torch

    from tracer.answers.prediction import FitTrial
    from tracer.capture.device.phase_ledger import PhaseLedger
    from tracer.capture.objects.later_uses import SecondRun
    from tracer.sessions.schedule import Schedule
    from tracer.sessions.script_run import ScriptProfile
    from tracer.sessions.training_watch import TrainingWatch

__tracebackhide__ = True  # a line of this file explains nothing about the script

_WRONG_USAGE = 2
_SCHEDULE = ("n_wait_steps", "n_warmup_steps", "n_active_steps", "n_repeats")
_OWN_OPTIONS = {"--on", "--save-dir", "--keep-recording", "--watch", "--inference", "--apply"}

LATER = "later"
"""Below the folder of the results: what is said of memory that ends, or grows, after the recorded steps."""
_LEAST_NEED_S = 30
"""Seconds of a processor that the search for what a script needs has at least, where memory ran out."""


def run(
    context: typer.Context,
    script: opt.ScriptName,
    arguments: opt.Arguments = None,
    module: opt.Module = False,
    watch: Annotated[bool, option("Watch to the end, without a profiler.", None, "--watch")] = False,
    inference: Annotated[bool, option("It trains nothing: a model's call is a step.", None, "--inference")] = False,
    apply: Annotated[str, option("Changes that `fit` named: checkpoint,bf16.", metavar="<names>")] = "",
    device: Annotated[
        str | None, option("Device to explain; by default the model's.", opt.DEVICE, metavar="<text>", hidden=True)
    ] = None,
    on: opt.On = None,
    answer: opt.Answers = None,
    per_node: opt.PerNode = 8,
    rank: opt.Rank = None,
    one_process: opt.OneProcess = False,
    n_wait_steps: opt.WaitSteps = 0,
    n_warmup_steps: opt.WarmupSteps = 1,
    n_active_steps: opt.ActiveSteps = 3,
    n_repeats: opt.Repeats = 2,
    save_dir: opt.SaveDir = opt.SAVE_DIR,
    keep_recording: opt.KeepRecording = False,
    full: opt.Full = False,
    quiet: opt.Quiet = False,
) -> None:
    """Profile an unchanged training script.

    It runs as it is, and the memory peak of its first steps is explained. Models,
    optimizers and steps are found while it runs. The files are written as soon as
    all is recorded; the script goes on, and the answer is printed when it ends.
    Options of this command come before the script's name. With --on it needs no GPU.

    torch-timeline run --save-dir profile train.py --epochs 3
    """
    place = OnOptions(on=on, answer=answer, per_node=per_node, rank=rank, one_process=one_process)
    this_run = Run(place=place, save_dir=save_dir, console=Console.of(quiet=quiet, full=full))
    with errors_for_people():
        _ = place.answers  # a mistake in them is said first
        if (engine := engine_command(script, arguments, is_module=module)) is not None:
            answer_engine(engine, this_run)
        named = script_named(place, script, arguments, is_module=module)
        changes = _checked_changes(apply) if apply else ()
        if on is not None and (asked := role("trial")) is not None:  # of `fit`, which runs this command again
            from tracer.commands.fit_trials import answer_trial

            with kept_import_path():
                answer_trial(asked, on, place, named)
            return
        this_run.as_job()
        devices = this_run.start()
        if device is not None:
            check_device(device)
    this_run.say_where(devices)
    with errors_for_people():  # torch is loaded here
        from tracer.exporters.files import check_folder
        from tracer.sessions.schedule import Schedule
        from tracer.sessions.termination import Termination

    again: _Again | None = None
    ended = _Ending(named.arguments)
    here, closed = this_run.on_null_gpu(), closing(Termination())
    if inference and devices is not None:  # a script's engines run in its own process, where calls are recorded
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    with errors_for_people(), kept_import_path(), here, _made(changes) as notes, closed as termination:
        # A first call takes most where it is the one that reads a prompt; warmup would leave it out.
        is_cold = inference and n_warmup_steps == 1
        steps = Schedule(n_wait_steps, 0 if is_cold else n_warmup_steps, n_active_steps, n_repeats)
        may_end_early = not any(was_given(context, name) for name in _SCHEDULE)
        check_folder(save_dir)
        named.check()
        is_alone = RankPlace.here() is None  # a job says it for all ranks together
        if devices is not None and is_alone and not this_run.console.is_quiet:
            again = _Again(devices.card.usable_bytes)
        make_profile = partial(
            _make_profile,
            *(named, this_run),
            schedule=None if watch else replace(steps, may_end_early=may_end_early),
            device=device,
            is_inference=inference,
            keep_recording=keep_recording,
            run_again=again,
        )
        profile = make_profile()
        in_child = partial(child_profiled, make_profile, this_run.console)
        termination.watch()
        follow = followed(named, profile, this_run, profiled_child=in_child)
        # Here, since each call between a script and the interpreter is a frame of every stack that is recorded.
        with ended, follow as told:
            ended.succeeded = run_script(
                profile, named, this_run.console, is_answer=ended.is_answer, around_answer=told
            )
        this_run.console.say_all(notes())
        if devices is not None:
            _say_if_elsewhere(profile)
    if again is not None and ended.out_of_memory and not again.has_run:  # no session saw it
        say_all(again.need())
    ended.end_command(is_incomplete=profile.is_incomplete)


def _make_profile(
    script: Script,
    run: Run,
    *,
    schedule: Schedule | None,
    device: str | None,
    is_inference: bool,
    keep_recording: bool,
    run_again: _Again | None,
) -> ScriptProfile:
    """Make the profile of a script; without a schedule, it is watched instead."""
    from tracer.capture.device.allocator_history import record_from_start
    from tracer.sessions.script_run import ScriptProfile
    from tracer.sessions.session import ScriptVoice

    settings = {**({"on": run.place.on} if run.place.on is not None else {}), **script.settings}
    screen = run.console.level
    common: dict[str, Any] = {"voice": ScriptVoice(run_again), "device": device, "settings": settings, "screen": screen}
    assert run.save_dir is not None  # the option has a default

    def watched(model: Any, optimizer: Any, **more: Any) -> TrainingWatch:
        from tracer.sessions.training_watch import TrainingWatch

        return TrainingWatch(model, optimizer, **{**common, **more})

    if schedule is None:
        return ScriptProfile(partial(watched, save_dir=run.save_dir), is_inference=is_inference)
    from tracer.sessions.training_profile import TrainingProfile

    profiled = partial(
        TrainingProfile, save_dir=run.save_dir, keep_recording=keep_recording, schedule=schedule, **common
    )
    record_from_start()
    later = partial(watched, save_dir=run.save_dir / LATER, on_signal=None, is_later=True)
    return ScriptProfile(profiled, make_later=later, is_inference=is_inference)


class _Again:
    """Runs the script again on the null GPU, with memory that does not end, once its memory has run out."""

    def __init__(self, usable_bytes: int) -> None:
        self._usable_bytes = usable_bytes
        self.has_run = False

    def __call__(self, device: torch.device, num_allocations: int) -> SecondRun | None:
        """Find how much it needs, and how it uses later what was in use as its memory ran out."""
        from tracer.answers.answer_of_fit import need_words
        from tracer.capture.objects.later_uses import SecondRun
        from tracer.capture.torch_private.torch_history import RAISED

        if self.has_run or device.index is None:  # as on the CPU
            return None
        follow = device.index, num_allocations, RAISED.requested_bytes
        trial = self._trial(follow if _operators_tell_all() else None)
        missing_bytes = max(0, trial.allocated_bytes + trial.beside_bytes - self._usable_bytes)
        grows = trial.growth_bytes > 0
        need, peak_bytes = need_words(trial, self._usable_bytes), trial.allocated_bytes
        return SecondRun(need, missing_bytes, trial.uses, peak_bytes, grows, trial.reserved_bytes)

    def need(self) -> tuple[str, ...]:
        """Return sentences on how much memory it needs."""
        from tracer.answers.answer_of_fit import need_words

        return need_words(self._trial(None), self._usable_bytes)

    def _trial(self, follow: tuple[int, int, int] | None) -> FitTrial:
        from tracer.commands.fit_trials import ScriptTrials

        self.has_run = True
        say("Memory ran out: the script runs once more with memory that does not end, to see how much it needs.")
        limit_s = _LEAST_NEED_S + 2 * int(time.process_time())  # the script's own time is in it
        return ScriptTrials(self._usable_bytes).need(limit_s, follow=follow)


def _operators_tell_all() -> bool:
    """True if only torch's operators read tensors here."""
    from tracer.capture.torch_private.torch_compile import has_compiled, may_launch_kernels_of_triton
    from tracer.capture.torch_private.torch_cuda import extensions_on_cuda

    return not (has_compiled() or may_launch_kernels_of_triton() or extensions_on_cuda())


@contextmanager
def followed(
    script: Script,
    profile: ScriptProfile,
    run: Run,
    *,
    profiled_child: Callable[[], AbstractContextManager[None]] | None = None,
) -> Iterator[AbstractContextManager[None]]:
    """Within the block, follow memory that the profile leaves out: of engines, phases and other ranks.

    Yields:
        A context around the answer, which prints and writes that memory.

    Args:
        profiled_child: See `children_followed`.
    """
    from tracer.engines.run import engine_reports
    from tracer.sessions.child_phases import children_followed
    from tracer.sessions.folder import SessionFolder
    from tracer.sessions.jobs.ranks import ranks_of_children, read_ranks, shared_sentences, speaks_for_all, write_ranks
    from tracer.sessions.phase_reports import follow_trl, ledger_of_process

    assert run.save_dir is not None  # the option has a default
    folder = SessionFolder(run.save_dir)
    if folder.rank is not None:  # its children have the variables of this rank
        profiled_child = None
    console = run.console if folder.is_of_first_rank else QUIET
    with engine_reports() as reports, ExitStack() as phases:
        phases.callback(follow_trl())
        phases.enter_context(children_followed(profiled_child))
        ledger = phases.enter_context(ledger_of_process(Path(script.path).name))

        @contextmanager
        def told() -> Iterator[None]:
            phases.close()
            children = ranks_of_children(reports)
            if profiled_child is not None:
                profile.facts.children_recorded = len(children.ranks)
            page = profile.session.page if profile.session is not None else None
            tell_reports(reports, folder.path, page, console, computed=run.computes)
            yield
            _tell_phases(ledger, reports, folder.path, console, computed=run.computes)
            summary, rank = children, folder.rank
            if children.ranks:
                write_ranks(children, folder.save_dir)
            if rank is not None and rank.job_folder is None:
                summary = read_ranks(folder.save_dir, rank.world_size, run=rank.run)
                if not speaks_for_all(rank, summary, folder.save_dir):
                    return
            if run.console.is_quiet or not summary.ranks:
                return
            if children.ranks:
                names = ", ".join(f"rank{each.index}" for each in children.ranks)
                processes = some(len(children.ranks), "process")
                say(f"{processes} of the script trained: {names} in {folder.save_dir}, compared in {RANKS_TEXT}.")
            with run.console.screen() as rich:
                for sentence in shared_sentences(summary):
                    say_on(rich, sentence)

        yield told()


def _tell_phases(ledger: PhaseLedger, reports: Path, folder: Path, console: Console, *, computed: bool) -> None:
    """Print a table of each process's phases, and write phases.json; without phases an earlier file is removed."""
    from tracer.exporters.files import remove, write_json
    from tracer.sessions.phase_reports import gpu_peaks, read_phases
    from tracer.sessions.session import fault_text

    if ledger.fault is not None:
        say(f"Note: Phases were followed no further: {fault_text(ledger.fault)}")
    everybody = (ledger.phases, *read_phases(reports))
    processes = [each for each in everybody if each.has_phases]
    path = folder / PHASES_JSON
    if not processes:
        remove(path)
        return
    from tracer.exporters.phases import phases_json, print_phases

    peaks = gpu_peaks(everybody)
    write_json(path, phases_json(processes, peaks, computed=computed))
    console.say(f"Wrote {path}  (open with jq, or any program)")
    with console.screen() as rich:
        print_phases(processes, peaks, rich)


class _Ending:
    """Catches a script's own `sys.exit`, and ends the command as the script did."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self.succeeded, self.out_of_memory = True, False
        self.own_end: SystemExit | None = None

    def is_answer(self, error: BaseException) -> bool:
        """Note whether memory ran out; the error is shown all the same."""
        from tracer.answers.failure import is_out_of_memory

        self.out_of_memory = is_out_of_memory(error)
        return False

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, SystemExit) or isinstance(error, Terminated):
            return False
        if error.code == _WRONG_USAGE and _OWN_OPTIONS.intersection(self._arguments):
            say(f"Hint: {BEFORE_SCRIPT}")
        self.own_end = error
        return True

    def end_command(self, *, is_incomplete: bool) -> None:
        """End as the script did; with 1 if it failed or its recording is incomplete."""
        from tracer.commands.early_ends import EndedAtOnce

        if isinstance(self.own_end, EndedAtOnce):
            flush_output()
            self.own_end.end()
        if self.own_end is not None and (self.own_end.code or not is_incomplete):
            raise self.own_end
        if not self.succeeded or is_incomplete:
            raise typer.Exit(1)


def _say_if_elsewhere(profile: ScriptProfile) -> None:
    """Say that a script has trained on another device than the null GPU, and how it uses that."""
    from tracer.answers.null_run import USE_CUDA, elsewhere

    results = profile.session.results if profile.session is not None else None
    if results is not None and (reason := elsewhere(results.device)):
        say(f"{reason} {USE_CUDA}")


def _checked_changes(names: str) -> Sequence[str]:
    from tracer.changes.script_changes import allocator_variables, script_changes

    if names.endswith(".json"):
        from tracer.exporters.json_documents.prediction import read_fit_json

        names = ",".join(read_fit_json(Path(names)))
    changes = script_changes(names)
    os.environ.update(allocator_variables(changes))
    return changes


@contextmanager
def _made(changes: Sequence[str]) -> Iterator[Callable[[], Sequence[str]]]:
    """While active, changes are applied; yields a function that returns notes on those that could not be."""
    if not changes:
        yield lambda: ()
        return
    from tracer.changes.applied import AppliedChanges

    with AppliedChanges(changes) as applied:
        yield lambda: applied.notes
