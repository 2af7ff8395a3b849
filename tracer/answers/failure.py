"""The end of a run that ended early, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracer.answers.paths import behind
from tracer.capture.sources.source_line import SourceLine
from tracer.errors import Terminated
from tracer.units import format_bytes

if TYPE_CHECKING:
    from tracer.answers.run_results import RunResults


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a run that ended early."""

    error: BaseException  # The exception
    step: int  # Number of the step in which it happened, from 0
    allocator: Mapping[str, int]  # The allocator's state right after, by name, in bytes
    line: SourceLine | None = None  # Line of the user's own code where the error arose, if there is one
    in_timing_pass: bool = False  # Whether all steps had ended, and their phases were being timed

    @property
    def out_of_memory(self) -> bool:
        """Whether the device had no memory left."""
        return is_out_of_memory(self.error)


def without_tracebacks(error: BaseException) -> BaseException:
    """The same exception, and what it came from, without the frames that keep the tensors of the step alive."""
    seen: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        raised = rest.pop()
        if raised is None or id(raised) in seen:
            continue
        seen.add(id(raised))
        raised.__traceback__ = None
        rest += [raised.__cause__, raised.__context__]
        if isinstance(raised, BaseExceptionGroup):
            rest += raised.exceptions
    return error


# The CPU's allocator, the driver when it needs memory for itself, and CUDA's libraries for theirs.
_NO_MEMORY_LEFT = (
    "DefaultCPUAllocator",
    "CUDA error: out of memory",
    "ran out of memory outside PyTorch's allocator",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUFFT_ALLOC_FAILED",
)
# A convolution none of whose algorithms ran: none had room for its workspace, or none computes this.
_NO_ALGORITHM = ("unable to find an engine to execute", "Unable to find a valid cuDNN algorithm")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device had no memory left, in the words of either allocator."""
    import torch  # here alone, so that results are read without it

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    if any(words in str(error) for words in _NO_ALGORITHM) and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return any(torch.cuda.memory_stats(device).get("num_ooms") for device in range(torch.cuda.device_count()))
    return any(words in str(error) for words in _NO_MEMORY_LEFT)


def without_gpu(message: str) -> str:
    """Torch's message of an out of memory up to what was asked for, without a period: the rest repeats the GPU."""
    return message.split(" GPU ", 1)[0].rstrip(".")


def failure_lines(results: RunResults) -> list[str]:
    """Return the failure, the allocator's state if it has one, and a hint; no lines if nothing failed."""
    failure = results.failure
    if failure is None:
        return []
    lines = [f"Error: {_what(failure)}"]
    if failure.allocator:
        state = ", ".join(f"{key} {format_bytes(value)}" for key, value in failure.allocator.items())
        lines.append(f"Allocator: {state}.")
    return [*lines, f"Hint: {_hint(failure, results)}"]


def _what(failure: Failure) -> str:
    error, where = failure.error, behind(failure.line)
    during = "the timing pass" if failure.in_timing_pass else f"step {failure.step + 1}"
    subject = during[0].upper() + during[1:]
    if isinstance(error, KeyboardInterrupt):
        return f"Interrupted in {during}."
    if isinstance(error, Terminated):
        return f"Ended by {error.signal_name} in {during}."
    if isinstance(error, SystemExit):
        return f"{subject} ended the program{where}."
    if isinstance(error, StopIteration):
        return f"The data iterator was exhausted in {during}{where}."
    if getattr(error, "hint", ""):  # it is meant for people already
        return str(error)
    name = type(error).__name__
    event = "ran out of memory" if failure.out_of_memory else f"raised {name}"
    why = str(error).strip().splitlines()
    return f"{subject} {event}: {why[0] if why else name}{where}"


def _hint(failure: Failure, results: RunResults) -> str:
    error, below = failure.error, _below(failure, results)
    if isinstance(error, StopIteration):
        return f"Restart the data iterator, or ask for fewer steps: --n-active-steps, --n-repeats. {below}"
    if getattr(error, "hint", ""):
        return str(error.hint)  # type: ignore[attr-defined]
    if failure.step == 0 and isinstance(error, Exception) and not failure.out_of_memory:
        return _called_with(results.settings) or below
    return below


def _below(failure: Failure, results: RunResults) -> str:
    if results.findings is not None:
        return "What was recorded until then is explained and written below."
    if results.failed_allocation is not None:
        return "What was in use then is explained below, by line."
    if failure.out_of_memory:
        return (
            "Nothing was recorded yet. With --n-wait-steps 0 --n-warmup-steps 0 the first step is recorded too, "
            "and explained."
        )
    return "Nothing was recorded yet."


def _called_with(settings: Mapping[str, object]) -> str:
    """Return the arguments of a plain module whose first step failed."""
    inputs = settings.get("inputs")
    if not isinstance(inputs, tuple):
        return ""
    if not inputs:
        return "If it is a module that needs inputs, describe them with --input."
    options = " ".join(f"--input {text}" for text in inputs)
    return f"It was called with {options} and --batch-size {settings['batch_size']}: check shape, dtype and range."
