"""`torch-timeline predict`: will a training step fit on a GPU, asked without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tracer.commands.common import errors_for_people, kept_import_path, not_said, say_all
from tracer.commands.on_card import Answers, On, answers_of, values_on
from tracer.commands.predict_on import (
    check_on,
    predict_model,
    predict_script,
    print_answer,
    print_prediction_with,
    start_or_say_why,
    with_need,
    write_files,
)
from tracer.commands.run_options import NUM_ROWS, Quiet, Top
from tracer.commands.usage import DEVICE, MODEL, OUTPUTS, QUESTIONS, SCREEN
from tracer.commands.workload_options import (
    Accumulate,
    Amp,
    BatchSize,
    Checkpoint,
    Data,
    DataSize,
    HiddenChannels,
    InChannels,
    Inference,
    Loss,
    Model,
    ModelArg,
    ModelInput,
    NumLayers,
    NumModes,
    Optimizer,
    OutChannels,
    Seed,
    Spectrum,
    WorkloadOptions,
    workload_options,
)
from tracer.errors import MissingPackageError, TracerError
from tracer.exporters.screen.next_commands import after_prediction
from tracer.exporters.screen.terminal import say

if TYPE_CHECKING:
    from tracer.advice.recommendation import AdviceReport
    from tracer.allocator.settings import AllocatorSettings
    from tracer.null_gpu.cards import Card, Devices
    from tracer.results.prediction import LargestBatch, Prediction, ShapeNeed
    from tracer.workloads.workload import Workload

_DOES_NOT_FIT = 3
# The first two have state and cache settled; with shapes that vary, more for what the cache holds.
_NUM_STEPS, _NUM_STEPS_THAT_VARY = 3, 8
# Of a prediction there are no times.
_LEFT_OUT = ("run-time-report", "cuda-timing", "trace")


def predict(
    context: typer.Context,
    script: Annotated[
        str | None, typer.Argument(help="With --on: an unchanged script, in the place of a model.")
    ] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="The script's own, behind --.")] = None,
    batch_size: BatchSize = 8,
    in_channels: InChannels = 3,
    out_channels: OutChannels = 1,
    hidden_channels: HiddenChannels = 64,
    data_size: DataSize = "64",
    n_modes: NumModes = "32",
    n_layers: NumLayers = 4,
    data: Data = "random",
    spectrum: Spectrum = "new_zeros",
    seed: Seed = 0,
    model: Model = "",
    model_arg: ModelArg = [],  # noqa: B006
    model_input: ModelInput = [],  # noqa: B006
    hf_config: Annotated[
        Path | None,
        typer.Option(
            help="config.json of a transformers model, built without memory; --model-arg changes single values.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            help="Of a sample of --hf-config; with --inference, text of that length is generated, its cache kept.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    lora: Annotated[
        str,
        typer.Option(
            metavar="<rank>",
            help="Train adapters of peft in the place of the weights: 16, or 16:q_proj,v_proj.",
            rich_help_panel=MODEL,
        ),
    ] = "",
    optimizer: Optimizer = "adamw",
    loss: Loss = "auto",
    amp: Amp = "off",
    accumulate: Accumulate = 1,
    checkpoint: Checkpoint = False,
    inference: Inference = False,
    device: Annotated[
        Literal["cuda", "cpu"],
        typer.Option(help="What the step is to run on; it need not be there.", rich_help_panel=DEVICE),
    ] = "cuda",
    on: On = None,
    answer: Answers = [],  # noqa: B006
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            metavar="<size or card>",
            help="Does it fit there? 24GiB, or a card such as RTX-4090; exit with 3 if not.",
            rich_help_panel=DEVICE,
        ),
    ] = None,
    settings: Annotated[
        str | None,
        typer.Option(
            metavar="<settings>",
            help="Of the allocator, as in PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True.",
            rich_help_panel=DEVICE,
        ),
    ] = None,
    largest_batch: Annotated[
        bool,
        typer.Option(
            "--largest-batch",
            help="Also find the largest --batch-size that fits in --gpu-memory.",
            rich_help_panel=QUESTIONS,
        ),
    ] = False,
    advise: Annotated[
        bool,
        typer.Option(
            "--advise",
            help="Rehearse changes too, and say which would lower the peak, or make it fit.",
            rich_help_panel=QUESTIONS,
        ),
    ] = False,
    save_dir: Annotated[
        Path | None,
        typer.Option(help="Also write the files of a run there: peak.json, the page, ...", rich_help_panel=OUTPUTS),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answer as JSON instead.", rich_help_panel=SCREEN)
    ] = False,
    top: Top = NUM_ROWS,
    quiet: Quiet = False,
) -> None:
    """Say whether a training step fits on a GPU, what it would allocate there and what fills it, without a GPU.

    Nothing is computed. With --on, torch's own CUDA code runs on a GPU whose kernels do nothing; without, the step is
    rehearsed on tensors that have a shape and no memory.

        python main.py predict --model models.gpt:build --gpu-memory 24GiB
        python main.py predict train.py --on rtx-4090 -- --epochs 1
    """
    given = dict(locals())
    with errors_for_people(), kept_import_path():
        answers = answers_of(answer, on=on)
        devices = check_on(context, given)
        if devices is not None and start_or_say_why(given):
            with values_on(answers):
                fits: bool | None = _predict_there(context, given, devices)
        else:
            fits = _predict(context, given, devices.card if devices is not None else None)
    if fits is False:
        raise typer.Exit(_DOES_NOT_FIT)


def _predict_there(context: typer.Context, given: Mapping[str, Any], devices: Devices) -> bool:
    """The command on the null GPU, on which this process runs; whether it fits."""
    if given["save_dir"] is not None:
        from tracer.exporters.files import check_folder

        check_folder(given["save_dir"])
    largest = advice = None
    if given["script"] is not None:
        answer = predict_script(devices, given)
    else:
        from tracer.runs.prediction import predict as predicted

        options = workload_options(context, given)
        answer = predict_model(options, devices, given)
        answer = with_need(answer, lambda: predicted(_build(options, given["seed"]), card=devices.card))
        largest = _largest_batch(options, given, devices.card, None) if given["largest_batch"] else None
        advice = _advice(options, given, devices.card) if given["advise"] else None
    if given["save_dir"] is not None:
        write_files(answer, given, advice)
    if given["as_json"] or not given["quiet"]:
        print_answer(answer, largest, advice, as_json=given["as_json"], top=given["top"])
    if not given["as_json"] and not given["quiet"]:
        say_all(_next(answer.fits, given))
    return answer.fits


def _predict(context: typer.Context, given: Mapping[str, Any], named: Card | None) -> bool | None:
    """The command by rehearsal, on a card that was named or on `--gpu-memory`; None where there is neither."""
    options = workload_options(context, given)
    card, settings = _device(given, named)
    if given["save_dir"] is not None:
        from tracer.exporters.files import check_folder

        check_folder(given["save_dir"])
    from tracer.runs.prediction import predict as predicted

    workload = _build(options, given["seed"])
    shapes = _shapes_alone(options)
    num_steps = _NUM_STEPS_THAT_VARY if shapes else _NUM_STEPS
    answer = predicted(workload, card=card, settings=settings, device=given["device"], num_steps=num_steps)
    answer = replace(answer, by_shape=_needs(options, shapes, given, card))
    largest = _largest_batch(options, given, card, settings) if given["largest_batch"] and card is not None else None
    advice = _advice(options, given, card) if given["advise"] else None
    if given["save_dir"] is not None:
        _write(answer, workload, options, given["save_dir"], not_said if given["quiet"] else say, advice)
    if given["as_json"] or not given["quiet"]:
        _print(answer, largest, advice, as_json=given["as_json"], top=given["top"])
    if not given["as_json"] and not given["quiet"]:
        say_all(_next(answer.fits, given))
    return answer.fits


def _next(fits: bool | None, given: Mapping[str, Any]) -> tuple[str, ...]:
    folder = given["save_dir"]
    return after_prediction(
        fits,
        folder,
        [path.name for path in folder.iterdir()] if folder is not None else [],
        has_advice=given["advise"] or given["script"] is not None,
        has_largest_batch=given["largest_batch"] or given["script"] is not None,
    )


def _device(given: Mapping[str, Any], named: Card | None) -> tuple[Card | None, AllocatorSettings | None]:
    """What is said of the device, checked before anything is built.

    Raises:
        TracerError: It makes no sense.
    """
    from tracer.allocator.settings import parse_settings
    from tracer.null_gpu.cards import card_of

    if given["device"] == "cpu" and (given["gpu_memory"] or given["settings"]):
        raise TracerError("--gpu-memory and --settings have a meaning only for a GPU.", hint="Leave out --device cpu.")
    if given["largest_batch"] and named is None and not given["gpu_memory"]:
        raise TracerError("--largest-batch has a meaning only with --gpu-memory.", hint="Add --gpu-memory 24GiB.")
    card = card_of(given["gpu_memory"]) if given["gpu_memory"] else named
    return card, parse_settings(given["settings"]) if given["settings"] else None


def _shapes_alone(options: WorkloadOptions) -> tuple[tuple[str, ...], ...]:
    """The inputs of the smallest and of the largest shapes, where they vary."""
    from tracer.workloads.random_inputs import VARIES

    inputs = tuple(options.options.get("inputs", ()))
    if not any(VARIES.search(text) for text in inputs):
        return ()
    return tuple(tuple(VARIES.sub(by, text) for text in inputs) for by in (r"\1", r"\2"))


def _needs(
    options: WorkloadOptions, shapes: tuple[tuple[str, ...], ...], given: Mapping[str, Any], card: Card | None
) -> tuple[ShapeNeed, ...]:
    from tracer.runs.prediction import shape_need

    alone = ((inputs, replace(options, options={**options.options, "inputs": inputs})) for inputs in shapes)
    return tuple(
        shape_need(_build(one, given["seed"]), inputs, card=card, device=given["device"]) for inputs, one in alone
    )


def _build(options: WorkloadOptions, seed: int) -> Workload:
    import torch

    from tracer.rehearsal.unfilled import unfilled_weights

    torch.manual_seed(seed)
    with unfilled_weights():
        return options.build(torch.device("cpu"), device_named=False, without_memory=True)


def _largest_batch(
    options: WorkloadOptions, given: Mapping[str, Any], card: Card, settings: AllocatorSettings | None
) -> LargestBatch:
    """The largest that fits; where it is smaller than what was asked for, as many samples in micro-batches."""
    from tracer.results.prediction import LargestBatch
    from tracer.runs.prediction import fitting_micro_batches, largest_batch

    def build(batch: int, accumulate: int = given["accumulate"]) -> Workload:
        changed = {"batch_size": batch} | ({"accumulate": accumulate} if "accumulate" in options.options else {})
        return _build(replace(options, options={**options.options, **changed}), given["seed"])

    say_of = not_said if given["quiet"] else say

    def tell(batch: int, fits: bool) -> None:
        say_of(f"Batch size {batch}: {'fits' if fits else 'does not fit'}.")

    largest = largest_batch(build, card, start=given["batch_size"], settings=settings, tell=tell)
    can_accumulate = "accumulate" in options.options and not given["inference"]
    if not can_accumulate or not 0 < largest < given["batch_size"]:
        return LargestBatch(largest, None)
    asked = given["batch_size"] * given["accumulate"]
    return LargestBatch(largest, fitting_micro_batches(build, card, asked, largest, settings=settings))


def _advice(options: WorkloadOptions, given: Mapping[str, Any], card: Card | None) -> AdviceReport:
    from tracer.advice.planner import advise
    from tracer.advice.report import report_of

    found = advise(
        lambda: _build(options, given["seed"]),
        device=given["device"],
        target_bytes=card.usable_bytes if card is not None else None,
        settings=given["settings"] or "",
        compute_capability=card.capability if card is not None else (8, 0),
        num_multiprocessors=card.num_sms if card is not None else 108,
    )
    return report_of(found)


def _write(
    answer: Prediction,
    workload: Workload,
    options: WorkloadOptions,
    folder: Path,
    tell: Callable[[str], None],
    advice: AdviceReport | None,
) -> None:
    from tracer.runs.outputs import Written, write_outputs, written_lines
    from tracer.runs.prediction import results_of

    def tell_of(written: Written) -> None:
        for line in written_lines(written):
            tell(line)

    results = replace(results_of(answer, workload, settings=options.settings), advice=advice)
    written = write_outputs(results, folder, leave_out=_LEFT_OUT, tell=tell_of)
    for each in written:
        if each.error is not None and not isinstance(each.error, MissingPackageError):
            raise each.error


def _print(
    answer: Prediction, largest: LargestBatch | None, advice: AdviceReport | None, *, as_json: bool, top: int
) -> None:
    from tracer.exporters.json_documents.prediction import prediction_json
    from tracer.exporters.screen.prediction import print_prediction

    document = prediction_json(answer) if as_json else None
    print_prediction_with(document, lambda console: print_prediction(answer, console, top=top), largest, advice)
