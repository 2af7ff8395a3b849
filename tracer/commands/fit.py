"""`torch-timeline fit`: whether a script fits on a GPU, and if not, the least that has to change."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from tracer.answers.answer_of_fit import outcome_words
from tracer.answers.files import FIT_JSON
from tracer.answers.prediction import FitReport, FitTrial
from tracer.command_line import role
from tracer.commands import options as opt
from tracer.commands.common import THRESHOLD_EXCEEDED, errors_for_people, kept_import_path
from tracer.commands.engines import engine_command, fit_engine, numbers_of_gpus
from tracer.commands.fit_trials import NoTimeLeftError, ScriptTrials, answer_trial
from tracer.commands.launchers import script_named
from tracer.commands.on_card import OnOptions, Run
from tracer.commands.options import option
from tracer.commands.script import no_card_named
from tracer.errors import Terminated, UsageError
from tracer.exporters.screen.console import SHORT, Console
from tracer.exporters.screen.next_commands import program_name
from tracer.exporters.screen.terminal import say, show
from tracer.null_gpu.cards import devices_of

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
    as_json: opt.AsJson = False,
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
            if as_json:
                raise UsageError("--json works only with a script.", hint="--save-dir keeps engine.json of each start.")
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
        from tracer.sessions.termination import Termination

        search = _LeastChange(ScriptTrials(devices.card.usable_bytes, job))
        ended: BaseException | None = None
        try:
            with closing(Termination()) as termination, search.trials:
                termination.watch()
                best = search.each() if each else search.values(tried) if values else search.least()
        except (NoTimeLeftError, KeyboardInterrupt, Terminated) as error:
            best, ended = search.cheapest(), error
            if not search.made:
                raise
        report = FitReport(
            devices.words,
            search.trials.usable_bytes,
            named.words,
            tuple(search.made),
            best,
            is_each=each,
            is_whole=ended is None,
        )
        ranks = {} if job is None else {"num_ranks": job.per_node, "num_nodes": -(-devices.count // job.per_node)}
        _tell(report, ranks, save_dir, Console.of(as_json=as_json))
        if isinstance(ended, KeyboardInterrupt | Terminated):
            raise ended
        if best is None:
            raise typer.Exit(THRESHOLD_EXCEEDED)


def _tell(report: FitReport, ranks: Mapping[str, int], save_dir: Path | None, console: Console) -> None:
    """Write fit.json, and print the answer, and below it the command to paste.

    Args:
        ranks: Ranks of each node of a job, and its nodes, as `command_words` takes them.
    """
    from tracer.answers.answer_of_fit import answer_of_fit, command_words
    from tracer.changes.script_changes import change_sentences
    from tracer.exporters.json_documents.prediction import fit_values
    from tracer.exporters.screen.answer import print_answer

    best, command = None if report.is_each else report.best, ""
    if best is not None:
        report = replace(report, changes=change_sentences(best.apply))
        if best.apply or best.arguments:
            command = command_words((*report.script, *best.arguments), best.apply, program_name(), **ranks)
    if save_dir is not None:
        from tracer.exporters.files import write_json

        write_json(save_dir / FIT_JSON, fit_values(report))
    console.answer(lambda: fit_values(report), lambda rich: print_answer(answer_of_fit(report), rich, below=1))
    if command and not console.as_json:
        show(command)


@dataclass
class _LeastChange:
    trials: ScriptTrials
    made: list[FitTrial] = field(default_factory=list)

    def make(self, changes: Sequence[str] = (), arguments: tuple[str, ...] = ()) -> FitTrial:
        """Make a trial, and say whether it fits."""
        trial = self.trials.make(changes, arguments)
        self.made.append(trial)
        say(outcome_words(trial))
        return trial

    def each(self) -> FitTrial | None:
        """Try the script as it is, then each change alone, the one that costs least first."""
        from tracer.changes.script_changes import changes_of

        self.make()
        for change in changes_of(is_job=self.trials.job is not None):
            self.make((change,))
        return self._first()

    def values(self, tried: Sequence[tuple[str, ...]]) -> FitTrial | None:
        """Try each of some arguments behind the script's own."""
        for arguments in tried:
            self.make((), arguments)
        return self._first()

    def _first(self) -> FitTrial | None:
        return next((trial for trial in self.made if trial.fits), None)

    def least(self) -> FitTrial | None:
        """Return the trial with the least change that fits; None if no change from outside makes it fit."""
        from tracer.changes.script_changes import changes_against
        from tracer.sessions.trials.searches import least_that_fits

        base = self.make()
        usable_bytes = self.trials.usable_bytes
        if base.is_filled_by_growth(usable_bytes) or (not base.fits and base.built_bytes > usable_bytes):
            return None
        if base.fits:
            return base
        self.trials.limit()
        likely = changes_against(base.explanation.cause) if base.explanation is not None else ()
        return least_that_fits(self.make, is_job=self.trials.job is not None, likely=likely)

    def cheapest(self) -> FitTrial | None:
        """Of the trials made so far, one that fits and gives up least, with the fewest changes."""
        from tracer.changes.script_changes import SCRIPT_CHANGES

        def cost(trial: FitTrial) -> tuple[int, int]:
            return max((SCRIPT_CHANGES[name].group for name in trial.apply), default=-1), len(trial.apply)

        return min((trial for trial in self.made if trial.fits), key=cost, default=None)


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
