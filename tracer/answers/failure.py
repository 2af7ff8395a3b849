"""The end of a run that ended early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tracer.capture.sources.source_line import SourceLine


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
        """True if the device had no memory left."""
        return is_out_of_memory(self.error)


def without_tracebacks(error: BaseException) -> BaseException:
    """Return the exception without the frames, also of its causes, that keep the tensors of the step alive."""
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
    """True if a device had no memory left, in the words of either allocator."""
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
