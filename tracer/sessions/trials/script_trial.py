"""Whether a script fits on the null GPU, and at which peak: counters alone, which takes no recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from tracer.capture.torch_private.torch_modules import leave_unfilled
from tracer.errors import TracerError
from tracer.results.null_run import USE_CUDA, elsewhere
from tracer.results.prediction import Sizes
from tracer.sessions.script_run import ScriptProfile
from tracer.sessions.trials.counted_steps import CountedSteps, StepFlops, StepRequests
from tracer.sessions.trials.null_gpu_prediction import fullest_sizes

_QUICK_BYTES = 1 << 20
"""Weights of less are filled in no time."""


@dataclass(frozen=True, slots=True)
class ScriptSizes:
    """Memory that the first steps of a script took."""

    sizes: Sizes  # The peaks of the device that was filled most
    built: Sizes | None  # The same until the first step began; None where none has
    has_fit: bool  # Whether all steps that were wanted have run; what comes behind them is for the operations alone
    num_steps: int  # How many have ended
    growth_bytes: int  # By how much more each of the last ones left in use; 0 where memory does not grow
    flops: int | None  # Floating point operations of a step; None where it is not known


def script_sizes(
    run: Callable[[ScriptProfile], bool], *, num_steps: int, at_growth: Callable[[], None] = lambda: None
) -> ScriptSizes | None:
    """Run a script until its memory repeats, or has run out, and a step further to count its operations.

    Large weights that it initializes on the host are left unwritten. That is most of the time that a large model takes
    to begin; but what it draws later with the host's generator is not what a run with them draws.

    Args:
        run: Runs it under the profile that it is given, and says whether it came to its end.
        num_steps: Number of steps that are run; 0 for as many as it takes until two take the same.
        at_growth: Called when so many steps have run, if each left more in use than the one before.

    Returns:
        What was counted; None if no step was found in it.

    Raises:
        TracerError: What it trained is not on a GPU.
    """
    steps, flops = StepRequests(), StepFlops()
    known: list[Sizes] = []
    built: list[Sizes] = []

    def begins(models: dict[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> CountedSteps:
        built.append(fullest_sizes())
        return CountedSteps.of(models, optimizers)

    def is_enough() -> bool:
        if flops.is_on:
            flops.end()
            return True
        if steps.are_enough(num_steps):
            known.append(fullest_sizes())  # what counting takes is no part of it
            if steps.growth_bytes:
                at_growth()
            flops.begin()
        return False

    profile = ScriptProfile(begins, is_enough=is_enough)
    with _unfilled_weights():
        try:
            succeeded = run(profile)
        finally:
            flops.stop()
    session = profile.session
    if succeeded and not (isinstance(session, CountedSteps) and session.num_steps_done):
        return None
    peak = known[0] if known else fullest_sizes()
    if session is not None and not peak.peak_allocated_bytes and (reason := elsewhere(str(session.device))):
        raise TracerError(reason, hint=USE_CUDA)
    return ScriptSizes(
        peak,
        built[0] if built else None,
        has_fit=succeeded or bool(known),
        num_steps=steps.num_steps,
        growth_bytes=steps.growth_bytes if known else 0,  # a script that has ended by itself grows no more
        flops=flops.flops,
    )


@contextmanager
def _unfilled_weights() -> Iterator[None]:
    end = leave_unfilled(
        lambda tensor: tensor.device.type == "cpu" and tensor.is_floating_point() and tensor.nbytes >= _QUICK_BYTES
    )
    try:
        yield
    finally:
        end()
