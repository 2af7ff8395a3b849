"""`torch-timeline predict`: will a training step fit on a GPU, asked without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracer.command_line import role
from tracer.commands import options as opt
from tracer.commands.common import (
    THRESHOLD_EXCEEDED,
    errors_for_people,
    kept_import_path,
    refuse,
)
from tracer.commands.engines import answer_engine, engine_command
from tracer.commands.launchers import script_named
from tracer.commands.on_card import OnOptions, Run
from tracer.commands.options import number, option
from tracer.commands.script import Script, no_card_named
from tracer.commands.script_steps import predict_script
from tracer.commands.workload_options import OF_STEP, WorkloadOptions
from tracer.errors import UsageError
from tracer.exporters.screen.console import Console
from tracer.exporters.screen.next_commands import after_prediction
from tracer.null_gpu import process
from tracer.null_gpu.cards import A100, Card, Devices, devices_of
from tracer.null_gpu.job.place import RankPlace
from tracer.units import format_bytes

if TYPE_CHECKING:
    from tracer.answers.prediction import LargestBatch, Prediction
    from tracer.sessions.trials.searches import Trial
    from tracer.workloads.workload import Workload

_OF_MODELS = ("model", "model_input", "model_arg", "hf_config", "batch_size", "tokens", "largest_batch", *OF_STEP)


def predict(
    context: typer.Context,
    script: Annotated[str | None, typer.Argument(help="A script, or with -m a module; or --model.")] = None,
    arguments: opt.Arguments = None,
    module: opt.Module = False,
    model: opt.Model = "",
    model_arg: opt.ModelArgs = None,
    model_input: opt.ModelInputs = None,
    hf_config: Annotated[
        Path | None,
        option("config.json of a transformers model.", opt.MODEL, metavar="<path>"),
    ] = None,
    tokens: Annotated[
        int | None,
        number("Length of a text of --hf-config.", opt.MODEL),
    ] = None,
    batch_size: opt.BatchSize = 8,
    largest_batch: Annotated[bool, option("Find the largest batch that fits.", opt.MODEL, "--largest-batch")] = False,
    optimizer: opt.Optimizer = "adamw",
    loss: opt.Loss = "auto",
    amp: opt.Amp = "off",
    checkpoint: opt.Checkpoint = False,
    inference: opt.Inference = False,
    on: opt.On = None,
    answer: opt.Answers = None,
    per_node: opt.PerNode = 8,
    rank: opt.Rank = None,
    one_process: opt.OneProcess = False,
    save_dir: Annotated[
        Path | None,
        option("Also write the files of a run here.", opt.OUTPUTS, metavar="<path>"),
    ] = None,
    as_json: opt.AsJson = False,
    full: opt.Full = False,
    quiet: opt.Quiet = False,
) -> None:
    """Say whether a step fits on a GPU, without one.

    The answer says what the step allocates there, and what fills it. Nothing is
    computed: torch's own CUDA code runs on a GPU whose kernels do nothing.
    Exits with 3 if it does not fit.

    torch-timeline predict --on rtx-4090 train.py --epochs 1

    torch-timeline predict --on 24GiB --model models.gpt:build
    """
    place = OnOptions(on=on, answer=answer, per_node=per_node, rank=rank, one_process=one_process)
    console = Console.of(quiet=quiet, full=full, as_json=as_json)
    run = Run(place=place, save_dir=save_dir, console=console, status_if_full=THRESHOLD_EXCEEDED)
    with errors_for_people(), kept_import_path():
        workload = WorkloadOptions(
            batch_size=batch_size,
            model=model,
            hf_config=hf_config,
            tokens=tokens,
            model_arg=model_arg or (),
            inputs=model_input or (),
            optimizer=optimizer,
            loss=loss,
            amp=amp,
            checkpoint=checkpoint,
            inference=inference,
        )
        if script is not None and (engine := engine_command(script, arguments, is_module=module)) is not None:
            if on is None:
                raise no_card_named(arguments)
            answer_engine(engine, run, status_if_not=THRESHOLD_EXCEEDED)
        named = script_named(place, script, arguments, is_module=module) if script is not None else None
        _ = place.answers  # a mistake in them is said first
        run.as_job()
        devices = _checked(context, place, named, workload, largest_batch=largest_batch)
        if named is not None and on is not None and (asked := role("trial")) is not None:
            from tracer.commands.fit_trials import answer_trial

            answer_trial(asked, on, place, named)
            return
        shown = devices or Devices(A100)  # without --on an A100, whose memory is no limit
        process.restart_on([replace(shown.card, name=shown.card.name or A100.name)] * shown.count)
        with run.on_null_gpu():
            from tracer.answers.answer_of_prediction import answer_of_prediction
            from tracer.exporters.files import check_folder
            from tracer.exporters.json_documents.prediction import prediction_json
            from tracer.exporters.screen.answer import print_answer
            from tracer.sessions.output_files import write_and_say

            if save_dir is not None:
                check_folder(save_dir)
            largest = None
            if named is not None:
                assert devices is not None  # checked with the options
                found = _of_script(named, devices, console)
            else:
                found = predict_workload(workload, devices)
                if largest_batch and devices is not None:
                    largest = _largest_batch(workload, devices.card, console)
            answered = answer_of_prediction(found, largest)
            if save_dir is not None and not write_and_say(replace(found.results, predicted=answered), save_dir):
                raise typer.Exit(1)
            names = [path.name for path in save_dir.iterdir()] if save_dir is not None else []
            has_largest = largest_batch or named is not None
            last = after_prediction(found.fits, save_dir, names, has_largest_batch=has_largest, is_full=full)
            console.answer(
                lambda: prediction_json(found, largest), lambda rich: print_answer(answered, rich, full=full, last=last)
            )
        console.say_all(() if as_json else last)
    if found.fits is False:
        raise typer.Exit(THRESHOLD_EXCEEDED)


def _checked(
    context: typer.Context, place: OnOptions, script: Script | None, workload: WorkloadOptions, *, largest_batch: bool
) -> Devices | None:
    """Return the devices that `--on` names; None without it."""
    if script is not None:
        refuse(context, _OF_MODELS, "without a script", hint=f"An option of {script.path} stands behind its name.")
        if place.on is None:
            raise no_card_named(script.arguments)
    else:
        refuse(context, ("module",), "with a script")
        if workload.hf_config is not None:
            refuse(context, ("model",), "without --hf-config")
        else:
            refuse(context, ("tokens",), "with --hf-config")
            if not workload.model:
                raise UsageError(
                    "What is to be predicted? Neither a model nor a script is named.",
                    hint="Name a script, --model package.module:factory or --hf-config config.json.",
                )
        if largest_batch and place.on is None:
            raise UsageError("--largest-batch works only with --on.", hint="Add --on 24GiB.")
    return devices_of(place.on) if place.on is not None else None


def _of_script(script: Script, devices: Devices, console: Console) -> Prediction:
    found = predict_script(script, devices, console)
    if found.failed_at is None or found.is_whole or RankPlace.here() is not None:
        return found
    from tracer.commands.fit_trials import ScriptTrials

    need = ScriptTrials(devices.card.usable_bytes).need()
    return replace(found, without_end=None if need.has_ended_before else need)


def predict_workload(workload: WorkloadOptions, devices: Devices | None) -> Prediction:
    """Return the memory that a workload needs, by a run on the null GPU; without devices it is not limited."""
    from tracer.sessions.trials.null_gpu_prediction import predict_workload as predicted

    is_limited = devices is not None
    return predicted(builder(workload), devices or Devices(A100), is_limited=is_limited, settings=workload.settings)


def workload_trial(workload: WorkloadOptions, card: Card) -> Trial:
    """Run a workload on the null GPU to see whether it fits."""
    from tracer.sessions.trials.null_gpu_prediction import trial

    return trial(builder(workload), card)


def builder(workload: WorkloadOptions) -> Callable[[], Workload]:
    """Return what builds a workload, with random weights left unwritten, since nothing reads them."""
    import torch

    from tracer.capture.torch_private.torch_modules import leave_unfilled

    def build() -> Workload:
        torch.manual_seed(workload.seed)
        fill_again = leave_unfilled(torch.Tensor.is_floating_point)
        try:
            return workload.build(torch.device("cuda:0"), device_named=True, without_memory=True)
        finally:
            fill_again()

    return build


def _largest_batch(workload: WorkloadOptions, card: Card, console: Console) -> LargestBatch:
    """Find the largest batch that fits."""
    from tracer.answers.prediction import LargestBatch
    from tracer.sessions.trials.searches import MOST, largest_fitting

    with console.progress_bar("", is_counted=False) as update:

        def attempt(size: int) -> Trial:
            update(description=f"Batch size {size}")
            return workload_trial(replace(workload, batch_size=size), card)

        def tell(size: int, trial: Trial) -> None:
            answer = "fits" if trial.fits else "does not fit"
            console.say(f"Batch size {size}: {answer}, {format_bytes(trial.reserved_bytes)} reserved.")

        largest = largest_fitting(attempt, card.usable_bytes, workload.batch_size, tell=tell)
        return LargestBatch(largest, is_all=largest == MOST)
