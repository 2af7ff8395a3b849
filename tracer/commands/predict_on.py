"""`predict` on the null GPU: its options are checked, the process starts there, and a script or a model runs."""

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
from tracer.errors import Terminated, TracerError, UsageError
from tracer.null_gpu import process
from tracer.null_gpu.cards import A100, Devices, devices_of

if TYPE_CHECKING:
    from tracer.commands.predict_options import PredictOptions
    from tracer.commands.workload_options import PredictedWorkload
    from tracer.null_gpu.cards import Devices
    from tracer.results.prediction import Prediction
    from tracer.sessions.script_run import ScriptProfile
    from tracer.sessions.trials.bisections import Trial
    from tracer.sessions.trials.script_trial import ScriptSizes
    from tracer.workloads.workload import Workload


_OF_MODELS = ("model", "model_input", "model_arg", "hf_config", "batch_size", "tokens", "optimizer", "largest_batch")
_OF_SCRIPTS = ("module", "steps")


def check(options: PredictOptions) -> Devices | None:
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


def start_on_null_gpu(options: PredictOptions, devices: Devices | None) -> None:
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


def predict_script(script: Script, devices: Devices, *, num_steps: int, quiet: bool) -> Prediction:
    """Run a script there until its first steps are recorded."""
    from tracer.results.failure import is_out_of_memory
    from tracer.sessions.trials.null_gpu_prediction import no_room_before
    from tracer.sessions.trials.null_gpu_prediction import predict_script as predicted

    script.check()
    raised: list[BaseException] = []
    settings = {"script": script.path, "arguments": " ".join(script.arguments)}
    runner = _runner(script, raised, quiet=quiet)
    answer = predicted(runner, devices, num_steps=num_steps, settings=settings)
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
