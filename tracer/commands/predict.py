"""`torch-timeline predict`: will a training step fit on a GPU, asked without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracer.command_line import role
from tracer.commands import options as opt
from tracer.commands.common import THRESHOLD_EXCEEDED, errors_for_people, kept_import_path, refuse
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
from tracer.null_gpu.cards import A100, Devices, devices_of
from tracer.null_gpu.job.place import RankPlace

if TYPE_CHECKING:
    from tracer.answers.prediction import Prediction
    from tracer.workloads.workload import Workload

_OF_MODELS = ("model", "model_input", "model_arg", "hf_config", "batch_size", "tokens", *OF_STEP)


def predict(
    context: typer.Context,
    script: Annotated[str | None, typer.Argument(help="A script, or with -m a module; or --model.")] = None,
    arguments: opt.Arguments = None,
    module: opt.Module = False,
    model: opt.Model = "",
    model_arg: opt.ModelArgs = None,
    model_input: opt.ModelInputs = None,
    hf_config: Annotated[
        Path | None, option("config.json of a transformers model.", opt.MODEL, metavar="<path>")
    ] = None,
    tokens: Annotated[int | None, number("Length of a text of --hf-config.", opt.MODEL)] = None,
    batch_size: opt.BatchSize = 8,
    law: Annotated[bool, option("Find how memory grows with sizes.", opt.OUTPUTS, "--law")] = False,
    vary: Annotated[
        list[str] | None,
        option("With --law: '--batch-size 1..256' of a script, or batch.", opt.OUTPUTS, metavar="<size>"),
    ] = None,
    optimizer: opt.Optimizer = "adamw",
    loss: opt.Loss = "auto",
    amp: opt.Amp = "off",
    checkpoint: opt.Checkpoint = False,
    inference: opt.Inference = False,
    on: opt.NeededOn = None,
    answer: opt.Answers = None,
    per_node: opt.PerNode = 8,
    rank: opt.Rank = None,
    one_process: opt.OneProcess = False,
    save_dir: Annotated[
        Path | None, option("Also write the files of a run here.", opt.OUTPUTS, metavar="<path>")
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

    torch-timeline predict --on h100 --law --vary "--batch-size 1..256" train.py
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
        if law != bool(vary):
            raise UsageError("--law and --vary work only together.", hint='Add --law --vary "--batch-size 1..256".')
        if script is not None and (engine := engine_command(script, arguments, is_module=module)) is not None:
            if on is None:
                raise no_card_named(arguments)
            if law:
                raise UsageError("--law is of trainings.", hint="`fit --try` tries the options of an inference engine.")
            answer_engine(engine, run, status_if_not=THRESHOLD_EXCEEDED)
        named = script_named(place, script, arguments, is_module=module) if script is not None else None
        _ = place.answers  # a mistake in them is said first
        if not law:
            run.as_job()
        devices = _checked(context, place, named, workload, is_law=law)
        if on is not None and (asked := role("trial")) is not None:
            from tracer.commands.fit_trials import answer_trial, answer_workload_trial
            from tracer.commands.law import with_sizes

            if named is not None:
                answer_trial(asked, on, place, named)
            else:
                answer_workload_trial(asked, on, place, lambda sizes: builder(with_sizes(workload, sizes)))
            return
        if law and devices is not None:
            from tracer.commands.law import answer_law

            answer_law(vary or (), run, devices, named, workload)
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
            if named is not None:
                assert devices is not None  # checked with the options
                found = _of_script(named, devices, console)
            else:
                found = predict_workload(workload, devices)
            answered = answer_of_prediction(found)
            if save_dir is not None and not write_and_say(replace(found.results, predicted=answered), save_dir):
                raise typer.Exit(1)
            names = [path.name for path in save_dir.iterdir()] if save_dir is not None else []
            last = after_prediction(found.fits, save_dir, names, is_full=full)
            console.answer(
                lambda: prediction_json(found), lambda rich: print_answer(answered, rich, full=full, last=last)
            )
        console.say_all(() if as_json else last)
    if found.fits is False:
        raise typer.Exit(THRESHOLD_EXCEEDED)


def _checked(
    context: typer.Context, place: OnOptions, script: Script | None, workload: WorkloadOptions, *, is_law: bool
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
        if is_law and place.on is None:
            raise UsageError("--law works only with --on.", hint="Add --on 24GiB.")
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
