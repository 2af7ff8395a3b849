"""`torch-timeline predict`: will a training step fit on a GPU, asked without one."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracer.changes.script_changes import ALLOCATOR_SETTINGS
from tracer.command_line import role
from tracer.commands.browser import Open, opened, pages_of
from tracer.commands.common import (
    THRESHOLD_EXCEEDED,
    errors_for_people,
    kept_import_path,
    refuse,
    say_all,
    was_given,
)
from tracer.commands.engines import engine_command, predict_engine
from tracer.commands.launchers import script_named
from tracer.commands.on_card import OnOptions, on_null_gpu, run_ranks
from tracer.commands.options import option, with_options
from tracer.commands.run_options import AsJson, MixedArguments, Module, ScreenOptions, Steps
from tracer.commands.script import Script, no_card_named
from tracer.commands.script_steps import predict_script
from tracer.commands.usage import DEVICE, OUTPUTS, QUESTIONS
from tracer.commands.workload_options import FNO_ONLY, PredictedWorkload
from tracer.errors import UsageError
from tracer.exporters.screen.next_commands import after_prediction
from tracer.exporters.screen.terminal import print_json
from tracer.exporters.screen.terminal import screen as terminal
from tracer.null_gpu import process
from tracer.null_gpu.cards import A100, Devices, devices_of
from tracer.null_gpu.job.place import RankPlace
from tracer.units import format_bytes

if TYPE_CHECKING:
    from tracer.null_gpu.cards import Card
    from tracer.results.prediction import LargestBatch, Prediction
    from tracer.sessions.trials.bisections import Trial
    from tracer.workloads.workload import Workload


_OF_MODELS = ("model", "model_input", "model_arg", "hf_config", "batch_size", "tokens", "optimizer", "largest_batch")
_OF_SCRIPTS = ("module", "steps")


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(OnOptions):
    """The device that the step runs on."""

    gpu_memory: Annotated[
        str | None,
        option(
            "The same as --on: 24GiB, or a card such as RTX-4090; exit with 3 if it does not fit.",
            DEVICE,
            metavar="<size or card>",
        ),
    ] = None
    settings: Annotated[
        str | None,
        option(
            "Allocator settings, as in PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True.", DEVICE, metavar="<settings>"
        ),
    ] = None

    @property
    def card_text(self) -> str | None:
        """Text of `--on` or `--gpu-memory`."""
        return self.on or self.gpu_memory


@dataclass(frozen=True)
class PredictOptions:
    """All of a prediction's; without a script it is about the workload."""

    context: typer.Context
    script: Script | None
    workload: PredictedWorkload
    place: PlaceOptions
    num_steps: int
    largest_batch: bool
    save_dir: Path | None
    as_json: bool
    screen: ScreenOptions

    @property
    def is_shown(self) -> bool:
        """Whether there is an answer on stdout."""
        return self.as_json or not self.screen.quiet


@with_options
def predict(
    context: typer.Context,
    script: Annotated[
        str | None, typer.Argument(help="An unchanged script instead of a model; with --module, a module's name.")
    ] = None,
    arguments: MixedArguments = None,
    *,
    module: Module = False,
    workload: PredictedWorkload,
    place: PlaceOptions,
    steps: Steps = 0,
    largest_batch: Annotated[
        bool, option("Also find the largest --batch-size that fits.", QUESTIONS, "--largest-batch")
    ] = False,
    save_dir: Annotated[
        Path | None,
        option("Also write the files of a run to this folder: peak.json, the page, ...", OUTPUTS, metavar="<path>"),
    ] = None,
    open_: Open = False,
    as_json: AsJson = False,
    screen: ScreenOptions,
) -> None:
    """Say whether a training step fits on a GPU, what it would allocate there and what fills it, without a GPU.

    Nothing is computed: torch's own CUDA code runs on a GPU whose kernels do nothing. Without --on, the answer says how
    much memory a model's step needs.

        python main.py predict --model models.gpt:build --on 24GiB

        python main.py predict --on rtx-4090 train.py --epochs 1
    """
    with opened(pages_of(save_dir), is_wanted=open_), errors_for_people(), kept_import_path():
        if open_ and save_dir is None:
            raise UsageError("--open shows a page, and none is written.", hint="Add --save-dir with a folder.")
        if script is not None and (engine := engine_command(script, arguments, is_module=module)) is not None:
            predict_engine(engine, place, save_dir, quiet=screen.quiet, as_json=as_json)
        named = script_named(place, script, arguments, is_module=module) if script is not None else None
        options = PredictOptions(context, named, workload, place, steps, largest_batch, save_dir, as_json, screen)
        _ = place.answers  # a mistake in them is said first
        run_ranks(place, save_dir, quiet=screen.quiet, as_json=as_json, status_if_full=THRESHOLD_EXCEEDED)
        devices = _check(options)
        if named is not None and place.card_text is not None and (asked := role("trial")) is not None:
            from tracer.commands.fit_trials import answer_trial

            answer_trial(asked, place.card_text, place, named, num_steps=steps)
            return
        _start(options, devices)
        for sentence in named.notes if named is not None else ():
            options.screen.say(sentence)
        with on_null_gpu(place, save_dir, quiet=screen.quiet):
            fits = _predict(options, devices)
    if fits is False:
        raise typer.Exit(THRESHOLD_EXCEEDED)


def _predict(options: PredictOptions, devices: Devices | None) -> bool | None:
    """Answer, on the null GPU; return whether it fits, None where no card is named."""
    from tracer.exporters.files import check_folder

    if options.save_dir is not None:
        check_folder(options.save_dir)
    card = devices.card if devices is not None else None
    largest = None
    if options.script is not None:
        assert devices is not None  # checked with the options
        answer = predict_script(
            options.script,
            devices,
            num_steps=options.num_steps,
            quiet=options.screen.quiet,
        )
        if answer.failed_at is not None and not answer.is_whole and RankPlace.here() is None:
            from tracer.commands.fit_trials import ScriptTrials

            need = ScriptTrials(devices.card.usable_bytes).need()
            answer = replace(answer, without_end=None if need.has_ended_before else need)
    else:
        engine = OnNullGpu(devices)
        answer = engine.predict(options.workload)
        if options.largest_batch and card is not None:
            largest = _largest_batch(options, engine, card)
    if options.save_dir is not None:
        from tracer.exporters.screen.prediction import verdict
        from tracer.sessions.output_files import write_and_say

        results = replace(answer.results, verdict=verdict(answer))
        if not write_and_say(results, options.save_dir, quiet=options.screen.quiet):
            raise typer.Exit(1)
    _answer(answer, largest, options)
    return answer.fits


def _largest_batch(options: PredictOptions, engine: OnNullGpu, card: Card) -> LargestBatch:
    """Find the largest batch that fits; where it is smaller than asked for, also the micro-batches to use."""
    from tracer.exporters.screen.terminal import progress_bar
    from tracer.results.prediction import LargestBatch
    from tracer.sessions.trials.bisections import MOST, fitting_micro_batches, largest_fitting

    workload = options.workload
    with progress_bar("", is_shown=not options.screen.quiet, is_counted=False) as update:

        def attempt(size: int) -> Trial:
            update(description=f"Batch size {size}")
            return engine.trial(replace(workload, batch_size=size))

        def tell(size: int, trial: Trial) -> None:
            answer = "fits" if trial.fits else "does not fit"
            options.screen.say(f"Batch size {size}: {answer}, {format_bytes(trial.reserved_bytes)} reserved.")

        largest = largest_fitting(attempt, card.usable_bytes, workload.batch_size, tell=tell)
        found = LargestBatch(largest, is_all=largest == MOST)
        can_accumulate = workload.is_users and not workload.inference
        if not can_accumulate or not 0 < largest < workload.batch_size:
            return found

        def accumulated(size: int, number: int) -> Trial:
            update(description=f"{number} micro-batches of {size}")
            return engine.trial(replace(workload, batch_size=size, accumulate=number))

        asked = workload.batch_size * workload.accumulate
        return replace(found, accumulated=fitting_micro_batches(accumulated, asked, largest))


def _say_next(fits: bool | None, options: PredictOptions) -> None:
    if options.screen.quiet:
        return
    folder, is_script = options.save_dir, options.script is not None
    names = [path.name for path in folder.iterdir()] if folder is not None else []
    has_largest = options.largest_batch or is_script
    say_all(after_prediction(fits, folder, names, has_largest_batch=has_largest))


def _answer(
    answer: Prediction,
    largest: LargestBatch | None,
    options: PredictOptions,
) -> None:
    """The answer on stdout, with what was asked beside it, and on stderr what to ask next."""
    from tracer.exporters.json_documents.prediction import largest_json, prediction_json
    from tracer.exporters.screen.prediction import largest_words, print_prediction
    from tracer.exporters.screen.text import say as print_line

    with terminal(is_shown=options.is_shown) as console:
        if options.as_json:
            document = prediction_json(answer)
            document |= {} if largest is None else largest_json(largest)
            print_json(document, console)
            return
        print_prediction(answer, console, top=options.screen.top)
        if largest is not None:
            print_line(console)
            print_line(console, largest_words(largest))
    _say_next(answer.fits, options)


def _check(options: PredictOptions) -> Devices | None:
    """Return the devices that `--on` or `--gpu-memory` names; None without these options."""
    place = options.place
    if place.on and place.gpu_memory:
        raise UsageError("--on and --gpu-memory mean the same.", hint="Write --on h100:40GiB for another size.")
    if options.script is not None:
        own = f"Leave it out; an option of the script's own stands behind two dashes: {options.script.path} -- ..."
        refuse(options.context, _OF_MODELS, "without a script", hint=own)
        if place.card_text is None:
            raise no_card_named(options.script.arguments)
    else:
        refuse(options.context, _OF_SCRIPTS, "with a script")
        options.workload.check(options.context)
        if options.largest_batch and place.card_text is None:
            raise UsageError("--largest-batch works only with --on or --gpu-memory.", hint="Add --on 24GiB.")
    devices = devices_of(place.card_text) if place.card_text is not None else None
    if place.settings:
        from tracer.allocator.settings import parse_settings

        parse_settings(place.settings)  # torch's own complaint comes late and as a traceback
    if options.script is None and not options.workload.is_users:
        _check_fno(options)
    return devices


def _check_fno(options: PredictOptions) -> None:
    if not any(was_given(options.context, option) for option in FNO_ONLY):
        raise UsageError(
            "What is to be predicted? Neither a model nor a script is named.",
            hint="Name a script, --model package.module:factory or --hf-config config.json; with --n-modes 32, say, it "
            "is the built-in FNO.",
        )


def _start(options: PredictOptions, devices: Devices | None) -> None:
    """Continue in a process on the null GPU; without a card it is an A100, whose memory is not counted against.

    Raises:
        NullGpuError: The null GPU cannot be had here.
    """
    place = options.place
    if place.settings:
        os.environ[ALLOCATOR_SETTINGS] = place.settings
    devices = devices or Devices(A100)
    card = devices.card
    process.restart_on([replace(card, name=card.name or A100.name)] * devices.count)


@dataclass(frozen=True)
class OnNullGpu:
    """torch's own CUDA code, in this process."""

    devices: Devices | None  # The devices of the process; None where no card was named

    def predict(self, workload: PredictedWorkload) -> Prediction:
        """Return the memory that a workload needs, by a run on the null GPU."""
        from tracer.null_gpu.cards import A100, Devices
        from tracer.sessions.trials.null_gpu_prediction import predict_workload

        devices = self.devices or Devices(A100)
        is_limited = self.devices is not None
        return predict_workload(lambda: build(workload), devices, is_limited=is_limited, settings=workload.settings)

    def trial(self, workload: PredictedWorkload) -> Trial:
        """Run a workload on the null GPU to see whether it fits."""
        from tracer.sessions.trials.null_gpu_prediction import trial

        assert self.devices is not None  # checked with the options
        return trial(lambda: build(workload), self.devices.card)


def build(workload: PredictedWorkload) -> Workload:
    """The workload, with random weights left unwritten, since nothing reads them."""
    import torch

    from tracer.capture.unfilled import unfilled_weights

    torch.manual_seed(workload.seed)
    with unfilled_weights():
        return workload.build(torch.device("cuda:0"), device_named=True, without_memory=True)
