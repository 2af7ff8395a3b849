"""The first steps of a script on the null GPU: explained, or counted alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from tracer.commands.script import Script, run_script
from tracer.errors import Terminated, TracerError
from tracer.exporters.screen.console import QUIET, Console

if TYPE_CHECKING:
    from tracer.answers.prediction import Prediction
    from tracer.null_gpu.cards import Devices
    from tracer.sessions.script_run import ScriptProfile
    from tracer.sessions.trials.script_trial import ScriptSizes
    from tracer.sessions.trials.use_watch import UseWatch


def predict_script(script: Script, devices: Devices, console: Console) -> Prediction:
    """Run a script on the null GPU until its first steps are recorded."""
    from tracer.answers.failure import is_out_of_memory
    from tracer.sessions.trials.null_gpu_prediction import no_room_before
    from tracer.sessions.trials.null_gpu_prediction import predict_script as predicted

    script.check()
    raised: list[BaseException] = []
    settings = {"script": script.path, "arguments": " ".join(script.arguments)}
    runner = _runner(script, raised, console)
    answer = predicted(runner, devices, settings=settings)
    if answer is None and raised and is_out_of_memory(raised[0]):
        return no_room_before(raised[0], devices)
    if answer is None:
        raise _no_answer(script, raised)
    return answer


def script_trial(
    script: Script,
    *,
    at_growth: Callable[[], None],
    at_end: Callable[[], None] | None,
    uses: UseWatch | None,
    room_bytes: Callable[[], int],
) -> ScriptSizes:
    """Run the steps of `predict_script` without a recording; return whether they fit, and their peaks."""
    from tracer.answers.failure import is_out_of_memory
    from tracer.sessions.trials.script_trial import script_sizes

    script.check()
    raised: list[BaseException] = []
    runner = _runner(script, raised, QUIET)
    sizes = script_sizes(runner, at_growth=at_growth, at_end=at_end, uses=uses, room_bytes=room_bytes)
    if sizes is None or (not sizes.has_fit and any(not is_out_of_memory(error) for error in raised)):
        raise _no_answer(script, raised)
    return sizes


def _runner(script: Script, raised: list[BaseException], console: Console) -> Callable[[ScriptProfile], bool]:
    from tracer.answers.failure import is_out_of_memory

    def is_answer(error: BaseException) -> bool:
        raised.append(error)
        return is_out_of_memory(error)

    def run(profile: ScriptProfile) -> bool:
        try:
            with redirect_stdout(sys.stderr):  # what the script prints is no part of the answer
                return run_script(profile, script, console, is_answer=is_answer)
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
