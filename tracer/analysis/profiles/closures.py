"""Closures that an optimizer calls to have the loss evaluated: these are not the optimizer's own work.

With a closure, as LBFGS wants one and Lightning always gives one, the whole training step runs in `Optimizer.step`.
"""

from __future__ import annotations

import numpy as np

from tracer.arrays import Rows
from tracer.capture.recording import Recording
from tracer.capture.torch_names import STEP_WRAPPER, is_a_decorators, is_an_optimizers, is_asking_for_backward


def backward_calls(recording: Recording) -> Rows:
    """Rows of the calls of `torch.autograd.backward` and `grad`, through which every backward pass is asked for."""
    return recording.calls_of(is_asking_for_backward)


def closure_calls(recording: Recording) -> Rows:
    """Rows of the calls that an optimizer made to have the loss evaluated: those that lead to a backward pass.

    A closure is what torch's optimizer calls; of one outside torch it is what its `step` calls.
    """
    rows = {_closure(recording, row) for row in backward_calls(recording).tolist()}
    return np.array(sorted(rows - {-1}), np.int64)


def _closure(recording: Recording, row: int) -> int:
    """The outermost call below the innermost code of optimizers above a call; -1 if there is none above it."""
    calls = recording.calls
    path: list[int] = []
    while row >= 0 and not is_an_optimizers(_function(recording, row)[0]):
        path.append(row)
        row = int(calls.parent[row])
    if row < 0:
        return -1
    is_hook = _function(recording, row)[1] == STEP_WRAPPER
    for call in reversed(path):
        file, name = _function(recording, call)
        if is_a_decorators(file):
            continue
        if is_hook and name == "step":
            is_hook = False
            continue
        return call
    return -1


def _function(recording: Recording, call: int) -> tuple[str, str]:
    """File and name of the function called."""
    function = int(recording.calls.function[call])
    if function < 0:
        return "", ""
    frames, strings = recording.frames, recording.strings
    return strings[int(frames.file[function])], strings[int(frames.function[function])]
