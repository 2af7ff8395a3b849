"""`predict --on CARD`: the answer of the null GPU, or why there is none and the rehearsal answers in its place."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from tracer.commands.common import refuse
from tracer.commands.on_card import start_on
from tracer.errors import TracerError
from tracer.exporters.screen.terminal import say
from tracer.null_gpu.cards import Devices, devices_of
from tracer.null_gpu.errors import NullGpuError

if TYPE_CHECKING:
    from tracer.commands.predict_options import Options
    from tracer.commands.workload_options import WorkloadOptions
    from tracer.results.prediction import NullPrediction
    from tracer.runs.script_run import ScriptProfile

_SETTINGS_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
_MODEL_ALONE = ("model", "model_input", "model_arg", "hf_config", "batch_size", "largest_batch", "advise")


def check_on(options: Options) -> Devices | None:
    """What `--on` names; None without it.

    Raises:
        TracerError: It makes no sense, alone or with the other options.
    """
    place, is_script = options.place, options.script is not None
    if place.on is None:
        if is_script:
            raise TracerError("A script is predicted on the null GPU: --on is missing.", hint="Add --on h100, say.")
        return None
    if place.gpu_memory:
        raise TracerError("--on names the GPU already, and its memory.", hint="Write --on h100:40GiB.")
    if place.device != "cuda":
        raise TracerError("--on names a GPU, and --device cpu is none.", hint="Leave one of them out.")
    if is_script:
        refuse(options.context, _MODEL_ALONE, "without a script")
    return devices_of(place.on)


def start_or_say_why(options: Options) -> bool:
    """Go on in a process on the null GPU; False, after a sentence on stderr, where a rehearsal has to answer.

    Raises:
        NullGpuError: The null GPU cannot be had here, and a script cannot be rehearsed.
    """
    if settings := options.place.settings:
        from tracer.allocator.settings import parse_settings

        parse_settings(settings)  # torch's own complaint comes late and as a traceback
        os.environ[_SETTINGS_VARIABLE] = settings
    try:
        start_on(options.place.on or "")
    except NullGpuError as error:
        if options.script is not None:
            raise
        say(f"{error} {error.hint}".strip())
        say("Answered by rehearsal instead, on tensors that have a shape and no memory.")
        if options.place.answers:
            say("--answer is left out: a rehearsal reads no value.")
        return False
    return True


def predict_model(options: WorkloadOptions, devices: Devices) -> NullPrediction:
    """Train the model there for some steps."""
    import torch

    from tracer.runs.null_prediction import predict_workload

    torch.manual_seed(options.seed)
    workload = options.build(torch.device("cuda", 0), device_named=True)
    return predict_workload(workload, devices, settings=options.settings)


def predict_script(options: Options, devices: Devices) -> NullPrediction:
    """Run a script there until its first steps are recorded.

    Raises:
        TracerError: There is no such script, or nothing was found in it.
    """
    from tracer.commands.run import check_script, run_script
    from tracer.results.failure import is_out_of_memory
    from tracer.runs.null_prediction import predict_script as predicted

    script, arguments = options.script or "", list(options.arguments)
    check_script(script, is_module=False)

    def run(profile: ScriptProfile) -> bool:
        with redirect_stdout(sys.stderr):  # what the script prints is no part of the answer
            return run_script(profile, script, arguments, quiet=options.screen.quiet, is_answer=is_out_of_memory)

    answer = predicted(run, devices, settings={"script": script, "arguments": " ".join(arguments)})
    if answer is None:
        raise TracerError(f"{script} ended without a step that could be recorded.", hint="What it printed says why.")
    return answer
