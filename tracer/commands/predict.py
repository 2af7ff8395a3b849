"""`torch-timeline predict`: will a training step fit on a GPU, asked without one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracer.commands.common import errors_for_people, kept_import_path, say_all
from tracer.commands.on_card import run_ranks, values_on
from tracer.commands.options import option, with_options
from tracer.commands.predict_on import (
    check_on,
    predict_model,
    predict_script,
    start_or_say_why,
)
from tracer.commands.predict_options import Options, Place
from tracer.commands.run_options import AsJson, ScreenOptions
from tracer.commands.usage import OUTPUTS, QUESTIONS
from tracer.commands.workload_options import PredictedWorkload
from tracer.errors import TracerError
from tracer.exporters.screen.next_commands import after_prediction
from tracer.exporters.screen.terminal import screen as terminal

if TYPE_CHECKING:
    from tracer.advice.recommendation import AdviceReport
    from tracer.allocator.settings import AllocatorSettings
    from tracer.null_gpu.cards import Card, Devices
    from tracer.results.prediction import LargestBatch, NullPrediction, Prediction, ShapeNeed
    from tracer.results.run_results import RunResults
    from tracer.workloads.workload import Workload

_DOES_NOT_FIT = 3
# The first two have state and cache settled; with shapes that vary, more for what the cache holds.
_NUM_STEPS, _NUM_STEPS_THAT_VARY = 3, 8


@with_options
def predict(
    context: typer.Context,
    script: Annotated[
        str | None, typer.Argument(help="With --on: an unchanged script, in the place of a model.")
    ] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="The script's own, behind --.")] = None,
    *,
    workload: PredictedWorkload,
    place: Place,
    largest_batch: Annotated[
        bool,
        option("Also find the largest --batch-size that fits in --gpu-memory.", QUESTIONS, "--largest-batch"),
    ] = False,
    advise: Annotated[
        bool,
        option("Rehearse changes too, and say which would lower the peak, or make it fit.", QUESTIONS, "--advise"),
    ] = False,
    save_dir: Annotated[
        Path | None,
        option("Also write the files of a run there: peak.json, the page, ...", OUTPUTS, metavar="<path>"),
    ] = None,
    as_json: AsJson = False,
    screen: ScreenOptions,
) -> None:
    """Say whether a training step fits on a GPU, what it would allocate there and what fills it, without a GPU.

    Nothing is computed. With --on, torch's own CUDA code runs on a GPU whose kernels do nothing; without, the step is
    rehearsed on tensors that have a shape and no memory.

        python main.py predict --model models.gpt:build --gpu-memory 24GiB
        python main.py predict train.py --on rtx-4090 -- --epochs 1
    """
    options = Options(
        context, script, arguments or [], workload, place, largest_batch, advise, save_dir, as_json, screen
    )
    with errors_for_people(), kept_import_path():
        answers = place.answers
        run_ranks(place, save_dir, quiet=screen.quiet, as_json=as_json)
        devices = check_on(options)
        if devices is not None and start_or_say_why(options):
            with values_on(answers):
                fits: bool | None = _predict_there(options, devices)
        else:
            fits = _predict(options, devices.card if devices is not None else None)
    if fits is False:
        raise typer.Exit(_DOES_NOT_FIT)


def _predict_there(options: Options, devices: Devices) -> bool:
    """The command on the null GPU, on which this process runs; whether it fits."""
    _check_folder(options)
    largest = advice = None
    if options.script is not None:
        answer = predict_script(options, devices)
    else:
        from tracer.runs.prediction import predict as predicted

        options.workload.check(options.context)
        answer = predict_model(options.workload, devices)
        if not answer.fits:
            rehearsed = predicted(_build(options.workload), card=devices.card)
            answer = replace(answer, needed_bytes=rehearsed.unlimited.peak_reserved_bytes)
        largest = _largest_batch(options, devices.card, None) if options.largest_batch else None
        advice = _advice(options, devices.card) if options.advise else None
    if options.save_dir is not None:
        _write(replace(answer.results, advice=advice), options.save_dir, options)
    _answer(answer, largest, advice, options)
    return answer.fits


def _predict(options: Options, named: Card | None) -> bool | None:
    """The command by rehearsal, on a card that was named or on `--gpu-memory`; None where there is neither."""
    options.workload.check(options.context)
    card, settings = _device(options, named)
    _check_folder(options)
    from tracer.runs.prediction import predict as predicted
    from tracer.runs.prediction import results_of

    workload, device = _build(options.workload), options.place.device
    shapes = _shapes_alone(options.workload)
    num_steps = _NUM_STEPS_THAT_VARY if shapes else _NUM_STEPS
    answer = predicted(workload, card=card, settings=settings, device=device, num_steps=num_steps)
    answer = replace(answer, by_shape=_needs(shapes, options, card))
    largest = _largest_batch(options, card, settings) if options.largest_batch and card is not None else None
    advice = _advice(options, card) if options.advise else None
    if options.save_dir is not None:
        results = results_of(answer, workload, settings=options.workload.settings)
        _write(replace(results, advice=advice), options.save_dir, options)
    _answer(answer, largest, advice, options)
    return answer.fits


def _check_folder(options: Options) -> None:
    from tracer.exporters.files import check_folder

    if options.save_dir is not None:
        check_folder(options.save_dir)


def _say_next(fits: bool | None, options: Options) -> None:
    if options.screen.quiet:
        return
    folder, is_script = options.save_dir, options.script is not None
    names = [path.name for path in folder.iterdir()] if folder is not None else []
    has_largest = options.largest_batch or is_script
    say_all(
        after_prediction(fits, folder, names, has_advice=options.advise or is_script, has_largest_batch=has_largest)
    )


def _device(options: Options, named: Card | None) -> tuple[Card | None, AllocatorSettings | None]:
    """What is said of the device, checked before anything is built.

    Raises:
        TracerError: It makes no sense.
    """
    from tracer.allocator.settings import parse_settings
    from tracer.null_gpu.cards import card_of

    place = options.place
    if place.device == "cpu" and (place.gpu_memory or place.settings):
        raise TracerError("--gpu-memory and --settings have a meaning only for a GPU.", hint="Leave out --device cpu.")
    if options.largest_batch and named is None and not place.gpu_memory:
        raise TracerError("--largest-batch has a meaning only with --gpu-memory.", hint="Add --gpu-memory 24GiB.")
    card = card_of(place.gpu_memory) if place.gpu_memory else named
    return card, parse_settings(place.settings) if place.settings else None


def _shapes_alone(workload: PredictedWorkload) -> list[list[str]]:
    """The inputs of the smallest and of the largest shapes, where they vary."""
    from tracer.workloads.random_inputs import VARIES

    inputs = workload.model_input
    if not any(VARIES.search(text) for text in inputs):
        return []
    return [[VARIES.sub(by, text) for text in inputs] for by in (r"\1", r"\2")]


def _needs(shapes: list[list[str]], options: Options, card: Card | None) -> tuple[ShapeNeed, ...]:
    from tracer.runs.prediction import shape_need

    return tuple(
        shape_need(
            _build(replace(options.workload, model_input=inputs)),
            tuple(inputs),
            card=card,
            device=options.place.device,
        )
        for inputs in shapes
    )


def _build(options: PredictedWorkload) -> Workload:
    import torch

    from tracer.rehearsal.unfilled import unfilled_weights

    torch.manual_seed(options.seed)
    with unfilled_weights():
        return options.build(torch.device("cpu"), device_named=False, without_memory=True)


def _largest_batch(options: Options, card: Card, settings: AllocatorSettings | None) -> LargestBatch:
    """The largest that fits; where it is smaller than what was asked for, as many samples in micro-batches."""
    from tracer.results.prediction import LargestBatch
    from tracer.runs.prediction import fitting_micro_batches, largest_batch

    workload = options.workload

    def build(batch: int, accumulate: int = workload.accumulate) -> Workload:
        return _build(replace(workload, batch_size=batch, accumulate=accumulate))

    def tell(batch: int, fits: bool) -> None:
        options.say(f"Batch size {batch}: {'fits' if fits else 'does not fit'}.")

    largest = largest_batch(build, card, start=workload.batch_size, settings=settings, tell=tell)
    can_accumulate = workload.is_users and not workload.inference
    if not can_accumulate or not 0 < largest < workload.batch_size:
        return LargestBatch(largest, None)
    asked = workload.batch_size * workload.accumulate
    return LargestBatch(largest, fitting_micro_batches(build, card, asked, largest, settings=settings))


def _advice(options: Options, card: Card | None) -> AdviceReport:
    from tracer.advice.planner import advise
    from tracer.advice.report import report_of
    from tracer.null_gpu.cards import UNNAMED
    from tracer.rehearsal.convolution_workspaces import cudnn_of

    with cudnn_of(card) as cudnn:
        found = advise(
            lambda: _build(options.workload),
            device=options.place.device,
            target_bytes=card.usable_bytes if card is not None else None,
            settings=options.place.settings or "",
            card=card or UNNAMED,
            cudnn=cudnn,
        )
    return report_of(found)


def _write(results: RunResults, folder: Path, options: Options) -> None:
    """The files of a run, as far as nothing has to be computed for them."""
    from tracer.runs.outputs import teller, write_outputs

    for written in write_outputs(results, folder, tell=teller(options.say, complain=options.say)):
        if written.has_failed and written.error is not None:
            raise written.error


def _answer(
    answer: Prediction | NullPrediction, largest: LargestBatch | None, advice: AdviceReport | None, options: Options
) -> None:
    """The answer on stdout, with what was asked beside it, and on stderr what to ask next."""
    from tracer.exporters.json_documents.advice import advice_values
    from tracer.exporters.json_documents.prediction import largest_json, prediction_json
    from tracer.exporters.screen.advice import print_advice
    from tracer.exporters.screen.prediction import largest_words, print_prediction
    from tracer.exporters.screen.text import say as print_line
    from tracer.null_gpu.cards import CONTEXT_BYTES
    from tracer.results.prediction import NullPrediction

    with terminal(is_shown=options.is_shown) as console:
        if options.as_json:
            document = prediction_json(answer)
            document |= {} if largest is None else largest_json(largest)
            document |= {} if advice is None else {"advice": advice_values(advice, computed=False)}
            console.print(json.dumps(document, indent=1), soft_wrap=True, markup=False)
            return
        print_prediction(answer, console, top=options.screen.top)
        if advice is not None:
            print_advice(advice, console, context_bytes=CONTEXT_BYTES)
        if largest is not None:
            print_line(console)
            print_line(
                console,
                largest_words(largest) + (" That is by rehearsal." if isinstance(answer, NullPrediction) else ""),
            )
    _say_next(answer.fits, options)
