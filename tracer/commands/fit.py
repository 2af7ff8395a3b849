"""`torch-timeline fit`: whether a script fits on a GPU, and if not, the least that has to change."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tracer.answers.answer_of_prediction import command_words, trial_words
from tracer.answers.files import FIT_JSON
from tracer.answers.paths import shorten_paths
from tracer.answers.prediction import FitReport, FitTrial
from tracer.command_line import role
from tracer.commands import options as opt
from tracer.commands.common import THRESHOLD_EXCEEDED, errors_for_people, kept_import_path
from tracer.commands.engines import engine_command, fit_engine, numbers_of_gpus
from tracer.commands.fit_trials import ScriptTrials, answer_trial
from tracer.commands.launchers import script_named
from tracer.commands.on_card import OnOptions, Run
from tracer.commands.options import option
from tracer.commands.script import no_card_named
from tracer.errors import UsageError
from tracer.exporters.screen.console import SHORT
from tracer.exporters.screen.next_commands import program_name
from tracer.exporters.screen.terminal import say, show
from tracer.null_gpu.cards import devices_of
from tracer.units import format_bytes

MAX_COMBINATIONS = 64
_HINT = 'Write --try "--batch-size 8,4,2", or --try --compile for an option without a value.'


def fit(
    script: opt.ScriptName,
    arguments: opt.Arguments = None,
    module: opt.Module = False,
    each: Annotated[bool, option("Say what each change alone saves.", None, "--each")] = False,
    values: Annotated[
        list[str] | None, option("Try the script's options: '--batch-size 8,4,2'.", None, "--try", metavar="<values>")
    ] = None,
    on: opt.NeededOn = None,
    answer: opt.Answers = None,
    per_node: opt.PerNode = 8,
    rank: opt.Rank = None,
    one_process: opt.OneProcess = False,
    save_dir: Annotated[
        Path | None, option("Folder for fit.json, for run --apply.", opt.OUTPUTS, metavar="<path>")
    ] = None,
) -> None:
    """Find the least change with which a script fits.

    Each trial runs the unchanged script on the null GPU, with changes that are
    made from outside: first those that cost nothing, then those that cost time,
    then those that cost digits. The answer is a command that trains with them.
    Exits with 3 if nothing helps.

    torch-timeline fit --on rtx-4090 train.py --epochs 3

    torch-timeline fit --on 8xh100 --try "--batch-size 8,4,2" train.py

    torch-timeline fit --on 8xh100 vllm serve my-model
    """
    place = OnOptions(on=on, answer=answer, per_node=per_node, rank=rank, one_process=one_process)
    with errors_for_people(), kept_import_path():
        if on is None:
            raise no_card_named(arguments)
        devices, job = devices_of(on), place.job
        if each and values:
            raise UsageError(
                "--each tries changes, --try values of the script's options.", hint="Use one of them at a time."
            )
        tried = combinations(values or ())
        if (engine := engine_command(script, arguments, is_module=module)) is not None:
            if each:
                raise UsageError(
                    "An inference engine is tried with its own options.",
                    hint='Name them with --try alone, such as --try "--gpu-memory-utilization 0.85,0.9,0.95"; without '
                    "it, fit finds the smallest number of GPUs.",
                )
            tried = tried if values else numbers_of_gpus(devices.count)
            run = Run(place=place, save_dir=save_dir, console=SHORT)
            fit_engine(engine, run, tried, is_first_enough=not values)
        named = script_named(place, script, arguments, is_module=module)
        if save_dir is not None:
            from tracer.exporters.files import check_folder

            check_folder(save_dir)
        named.check()
        if (asked := role("trial")) is not None:
            answer_trial(asked, on, place, named)
            return
        with ScriptTrials(devices.card.usable_bytes, job) as trials:
            made: list[FitTrial] = []
            told = partial(_told, trials, made)
            if each:
                made += each_alone(trials)
                best = _first_that_fits(made)
            elif values:
                best = _first_that_fits([told((), arguments) for arguments in tried])
            else:
                best = _least(told, trials)
        report = FitReport(devices.words, trials.usable_bytes, named.words, tuple(made), best)
        if save_dir is not None:
            from tracer.exporters.files import write_json
            from tracer.exporters.json_documents.prediction import fit_values

            write_json(save_dir / FIT_JSON, fit_values(report))
        if best is None:
            if not each:
                say(_nothing_fits(report, is_of_values=bool(values)))
            raise typer.Exit(THRESHOLD_EXCEEDED)
        if not each and (best.apply or best.arguments):
            ranks = {} if job is None else {"num_ranks": job.per_node, "num_nodes": -(-devices.count // job.per_node)}
            show(command_words((*named.words, *best.arguments), best.apply, program_name(), **ranks))


def each_alone(trials: ScriptTrials) -> list[FitTrial]:
    """Try the script as it is, then each change alone, the one that costs least first; print each trial at once."""
    from tracer.changes.script_changes import changes_of

    made = [trials.make()]
    show("\n".join(trial_words(made[0], trials.usable_bytes)))
    for change in changes_of(is_job=trials.job is not None):
        made.append(trials.make((change,)))
        show("\n".join(trial_words(made[-1], trials.usable_bytes, made[0])))
    return made


def _first_that_fits(trials: Iterable[FitTrial]) -> FitTrial | None:
    """Return the first trial that fits; None if none does."""
    return next((trial for trial in trials if trial.fits), None)


def _told(
    trials: ScriptTrials,
    made: list[FitTrial],
    changes: Sequence[str],
    arguments: tuple[str, ...] = (),
    base: FitTrial | None = None,
) -> FitTrial:
    """Make a trial, and print its result beside that of the script as it is."""
    made.append(trials.make(changes, arguments))
    say("\n".join(trial_words(made[-1], trials.usable_bytes, base)))
    return made[-1]


def _least(told: Callable[..., FitTrial], trials: ScriptTrials) -> FitTrial | None:
    """Return the trial with the least change that fits; None if no change from outside makes it fit."""
    from tracer.changes.script_changes import SCRIPT_CHANGES, changes_against
    from tracer.sessions.trials.searches import least_that_fits

    base = told(())
    if (why := base.explanation) is not None and why.cause and (not base.fits or base.growth_bytes):
        say(shorten_paths(why.sentences))
    if base.growth_bytes or (not base.fits and base.built_bytes > trials.usable_bytes):
        return None
    if base.fits:
        return base
    likely = changes_against(why.cause) if why is not None else ()
    best = least_that_fits(partial(told, base=base), is_job=trials.job is not None, likely=likely)
    for name in best.apply if best is not None else ():
        change = SCRIPT_CHANGES[name]
        say(f"{name}: {change.words} ({change.group.words[0].lower()}{change.group.words[1:]}).")
    return best


def _nothing_fits(report: FitReport, *, is_of_values: bool) -> str:
    if all(trial.has_ended_before for trial in report.trials):
        return "The script made no step on the GPU in any trial, so that whether it fits is not known."
    if is_of_values:
        return f"The script fits on {report.device} with none of these values. `fit` without --try tries other changes."
    if (base := report.trials[0]).growth_bytes:
        return "No change that needs no edit ends that: the line that keeps memory from step to step has to change."
    if base.built_bytes > report.usable_bytes:
        return (
            f"{format_bytes(base.built_bytes)} are allocated before the first step: no change of the training helps. "
            "What does is fewer weights, weights made in bfloat16 at once, or a part of them on each of several GPUs."
        )
    has_cause = base.explanation is not None and base.explanation.cause
    edit = "what the cause above asks for, " if has_cause else ""
    return (
        f"No change that needs no edit makes the script fit on {report.device}. What is left is {edit}a smaller batch, "
        "sharding over several GPUs, or a larger GPU."
    )


def combinations(texts: Sequence[str]) -> list[tuple[str, ...]]:
    """Arguments to put behind a script's own, in the order in which their values were named.

    Args:
        texts: Each an option and its values; of one without values it is tried without and with it.
    """
    choices = [_choices(text) for text in texts]
    combined = [tuple(itertools.chain(*parts)) for parts in itertools.product(*choices)]
    if len(combined) > MAX_COMBINATIONS:
        raise UsageError(
            f"These are {len(combined):,} combinations, and each runs the script.",
            hint=f"Name {MAX_COMBINATIONS} or fewer.",
        )
    return combined


def _choices(text: str) -> list[tuple[str, ...]]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--try {text} cannot be read.", hint=_HINT) from error
    if len(words) == 1 and "=" in words[0]:
        words = words[0].split("=", 1)
    if not words or len(words) > 2 or not words[0].startswith("-"):
        raise UsageError(f"--try {text} is no option with its values.", hint=_HINT)
    if len(words) == 1:
        return [(), (words[0],)]
    values = [value.strip() for value in words[1].split(",")]
    if not all(values):
        raise UsageError(f"--try {text} has a value that is empty.", hint=_HINT)
    return [(words[0], value) for value in values]
