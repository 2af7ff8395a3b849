"""Which engine answers `predict`, the null GPU or a rehearsal; of a model each is asked the same questions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracer.changes.script_changes import ALLOCATOR_SETTINGS
from tracer.commands.common import refuse, was_given
from tracer.commands.script import Script, no_card_named, run_script
from tracer.commands.workload_options import FNO_ONLY
from tracer.errors import NullGpuError, Terminated, TracerError, UsageError
from tracer.exporters.screen.terminal import say
from tracer.null_gpu import process
from tracer.null_gpu.cards import A100, Devices, devices_of

if TYPE_CHECKING:
    from tracer.allocator.settings import AllocatorSettings
    from tracer.commands.predict_options import PredictOptions
    from tracer.commands.workload_options import PredictedWorkload
    from tracer.null_gpu.cards import Card, Devices
    from tracer.results.prediction import Prediction, ShapeNeed
    from tracer.sessions.script_run import ScriptProfile
    from tracer.sessions.trials.bisections import Trial
    from tracer.sessions.trials.script_trial import ScriptSizes
    from tracer.workloads.workload import Workload


_OF_MODELS = ("model", "model_input", "model_arg", "hf_config", "batch_size", "tokens", "lora", "optimizer")
_OF_SEARCHES = ("largest_batch", "largest_tokens", "largest_image", "table")
_OF_SCRIPTS = ("module", "steps", "batches")


def check(options: PredictOptions) -> Devices | None:
    """Return the devices that `--on` or `--gpu-memory` names; None without these options."""
    place = options.place
    if place.on and place.gpu_memory:
        raise UsageError("--on and --gpu-memory mean the same.", hint="Write --on h100:40GiB for another size.")
    if place.device == "cpu":
        _check_cpu(options)
    if options.script is not None:
        own = f"Leave it out; an option of the script's own stands behind two dashes: {options.script.path} -- ..."
        refuse(options.context, (*_OF_MODELS, *_OF_SEARCHES), "without a script", hint=own)
        if place.card_text is None:
            raise no_card_named(options.script.arguments)
        if place.engine == "rehearsal":
            raise UsageError("A script cannot be rehearsed: it runs on the null GPU.", hint="Leave out --engine.")
    else:
        refuse(options.context, _OF_SCRIPTS, "with a script")
        options.workload.check(options.context)
        asked = options.largest.asked or ("--table" if options.largest.table else "")
        if asked and place.card_text is None:
            raise UsageError(f"{asked} works only with --on or --gpu-memory.", hint="Add --on 24GiB.")
    devices = devices_of(place.card_text) if place.card_text is not None else None
    if place.settings:
        from tracer.allocator.settings import parse_settings

        parse_settings(place.settings)  # torch's own complaint comes late and as a traceback
    if options.script is None and not options.workload.is_users:
        _check_fno(options)
    return devices


def _check_cpu(options: PredictOptions) -> None:
    place = options.place
    if place.on:
        raise UsageError("--on names a GPU, but --device cpu is not one.", hint="Leave one of them out.")
    if place.gpu_memory or place.settings:
        raise UsageError("--gpu-memory and --settings work only for a GPU.", hint="Leave out --device cpu.")
    if place.engine == "null-gpu" or options.script is not None:
        raise UsageError("For the CPU, only a model can be predicted, by rehearsal.", hint="Leave out --device cpu.")


def _check_fno(options: PredictOptions) -> None:
    if not any(was_given(options.context, option) for option in FNO_ONLY):
        raise UsageError(
            "What is to be predicted? Neither a model nor a script is named.",
            hint="Name a script, --model package.module:factory or --hf-config config.json; with --n-modes 32, say, it "
            "is the built-in FNO.",
        )


def starts_on_null_gpu(options: PredictOptions, devices: Devices | None) -> bool:
    """Continue in a process on the null GPU; False, after a line that says why, if a rehearsal has to answer."""
    place = options.place
    if place.device == "cpu" or place.engine == "rehearsal":
        return False
    try:
        _start(options, devices or Devices(A100))
    except NullGpuError as error:
        if options.script is not None or place.engine == "null-gpu":
            raise
        options.screen.say(f"{error} {error.hint}".strip())
        options.screen.say("Answered by rehearsal instead, on tensors that have a shape and no memory.")
        if place.answers:
            say("--answer is left out: a rehearsal reads no value.")
        return False
    return True


def _start(options: PredictOptions, devices: Devices) -> None:
    place = options.place
    is_insisted = place.on is not None or place.engine is not None
    if not is_insisted and "torch" in sys.modules and not process.is_active():
        raise NullGpuError("torch is already loaded in this process; the null GPU must be loaded before it.")
    if place.settings:
        os.environ[ALLOCATOR_SETTINGS] = place.settings
    card = devices.card
    process.restart_on([replace(card, name=card.name or A100.name)] * devices.count)


def predict_script(
    script: Script, devices: Devices, *, num_steps: int, quiet: bool, num_batches: int = 0
) -> Prediction:
    """Run a script there until its first steps are recorded, on its own batches or the largest of so many."""
    from tracer.results.failure import is_out_of_memory
    from tracer.sessions.trials.null_gpu_prediction import no_room_before
    from tracer.sessions.trials.null_gpu_prediction import predict_script as predicted

    script.check()
    raised: list[BaseException] = []
    settings = {"script": script.path, "arguments": " ".join(script.arguments)}
    runner = _runner(script, raised, quiet=quiet)
    answer = predicted(runner, devices, num_steps=num_steps, settings=settings, num_batches=num_batches)
    if answer is None and raised and is_out_of_memory(raised[0]):
        return no_room_before(raised[0], devices)
    if answer is None:
        raise _no_answer(script, raised)
    return answer


def script_trial(script: Script, *, num_steps: int, at_growth: Callable[[], None]) -> ScriptSizes:
    """Whether a script fits there, and its peaks: the same steps as of `predict_script`, without a recording."""
    from tracer.results.failure import is_out_of_memory
    from tracer.sessions.trials.script_trial import script_sizes

    script.check()
    raised: list[BaseException] = []
    sizes = script_sizes(_runner(script, raised, quiet=True), num_steps=num_steps, at_growth=at_growth)
    if sizes is None or (not sizes.has_fit and any(not is_out_of_memory(error) for error in raised)):
        raise _no_answer(script, raised)
    return sizes


def _runner(script: Script, raised: list[BaseException], *, quiet: bool) -> Callable[[ScriptProfile], bool]:
    from tracer.results.failure import is_out_of_memory

    def is_answer(error: BaseException) -> bool:
        raised.append(error)
        return is_out_of_memory(error)

    def run(profile: ScriptProfile) -> bool:
        try:
            with redirect_stdout(sys.stderr):  # what the script prints is no part of the answer
                return run_script(profile, script, quiet=quiet, is_answer=is_answer)
        except Terminated:
            raise
        except SystemExit as end:  # a script's own end is no answer yet
            if end.code in (None, 0):
                return True
            raised.append(end)
            return False

    return run


def _no_answer(script: Script, raised: Sequence[BaseException]) -> TracerError:
    if raised and isinstance(raised[0], SystemExit):
        return TracerError(
            f"{script.path} itself ended with status {raised[0].code}, before three steps of it were recorded.",
            hint="What it printed is above.",
        )
    if raised:
        return TracerError(
            f"{script.path} itself ended with {type(raised[0]).__name__}, before three steps of it were recorded.",
            hint="Its traceback is above. Data and packages that it needs must be here, as for a real run.",
        )
    return TracerError(f"{script.path} ended without a step that could be recorded.", hint="What it printed says why.")


# The first two have state and cache settled; with shapes that vary, more for what the cache holds.
_NUM_STEPS, _NUM_STEPS_THAT_VARY = 3, 8


@dataclass(frozen=True)
class OnNullGpu:
    """torch's own CUDA code, in this process."""

    devices: Devices | None  # What the process runs on; None where no card was named

    def predict(self, workload: PredictedWorkload) -> Prediction:
        """The memory that a workload needs, by a run on the null GPU."""
        from tracer.null_gpu.cards import A100, Devices
        from tracer.sessions.trials.null_gpu_prediction import predict_workload, shape_need

        devices = self.devices or Devices(A100)
        shapes = shapes_alone(workload)
        answer = predict_workload(
            self._build(workload),
            devices,
            is_limited=self.devices is not None,
            settings=workload.settings,
            num_steps=_NUM_STEPS_THAT_VARY if shapes else _NUM_STEPS,
        )
        needs = (shape_need(self._build(replace(workload, model_input=inputs)), tuple(inputs)) for inputs in shapes)
        return replace(answer, by_shape=tuple(needs))

    def trial(self, workload: PredictedWorkload) -> Trial:
        """Whether a workload fits, by a run on the null GPU."""
        from tracer.sessions.trials.null_gpu_prediction import trial

        assert self.devices is not None  # checked with the options
        return trial(self._build(workload), self.devices.card)

    def _build(self, workload: PredictedWorkload) -> Callable[[], Workload]:
        return lambda: build(workload, "cuda:0")


@dataclass(frozen=True)
class Rehearsed:
    """Tensors without memory."""

    card: Card | None  # The card that it is about; None where none was named
    settings: AllocatorSettings | None  # Settings of its allocator
    device: str  # `cuda` or `cpu`

    def predict(self, workload: PredictedWorkload) -> Prediction:
        """The memory that a workload needs, by a rehearsal."""
        from tracer.sessions.trials.rehearsed_prediction import predict

        shapes = shapes_alone(workload)
        answer = predict(
            lambda: build(workload),
            card=self.card,
            settings=self.settings,
            device=self.device,
            num_steps=_NUM_STEPS_THAT_VARY if shapes else _NUM_STEPS,
            remember=workload.settings,
        )
        needs = (self._need(replace(workload, model_input=inputs), inputs) for inputs in shapes)
        return replace(answer, by_shape=tuple(needs))

    def trial(self, workload: PredictedWorkload) -> Trial:
        """Whether a workload fits, by a rehearsal."""
        from tracer.sessions.trials.rehearsed_prediction import trial

        assert self.card is not None  # checked with the options
        return trial(build(workload), self.card, self.settings)

    def _need(self, workload: PredictedWorkload, inputs: list[str]) -> ShapeNeed:
        from tracer.sessions.trials.rehearsed_prediction import shape_need

        return shape_need(lambda: build(workload), tuple(inputs), card=self.card, device=self.device)


Engine = OnNullGpu | Rehearsed


def build(workload: PredictedWorkload, device: str = "cpu") -> Workload:
    """The workload, with random weights left unwritten, since nothing reads them."""
    import torch

    from tracer.rehearsal.unfilled import unfilled_weights

    torch.manual_seed(workload.seed)
    with unfilled_weights():
        return workload.build(torch.device(device), device_named=device != "cpu", without_memory=True)


def shapes_alone(workload: PredictedWorkload) -> list[list[str]]:
    """The inputs of the smallest and of the largest shapes, where they vary."""
    from tracer.workloads.random_inputs import VARIES

    inputs = workload.model_input
    if not any(VARIES.search(text) for text in inputs):
        return []
    return [[VARIES.sub(by, text) for text in inputs] for by in (r"\1", r"\2")]
