"""Sentences on a run on the null GPU: that nothing was computed, and a real GPU's memory that is not counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracer.null_gpu import process

if TYPE_CHECKING:
    import torch

    from tracer.answers.findings import RunFindings

CAVEAT = "Null GPU: memory is torch's own, nothing was computed."
USE_CUDA = "Make it use cuda, by its own options or by torch.set_default_device."


def elsewhere(device: str) -> str:
    """A sentence if a script has trained where the null GPU was not asked for anything; empty where it was."""
    return (
        ""
        if device.partition(":")[0] == "cuda"
        else f"The script trained on {device}, so nothing was allocated on the GPU."
    )


def caveat_of(device: torch.device) -> str:
    """The sentence that comes first in all that is said of a run; empty where the device computes."""
    return CAVEAT if device.type == "cuda" and process.is_active() else ""


_NO_CUDNN = (
    "Not counted: cuDNN's workspaces; there is no cuDNN 9.8 or newer here to be asked for them. Published convolution "
    "networks came out 13 % too low to 6 % too high."
)


def notes_of(findings: RunFindings | None) -> tuple[str, ...]:
    """Sentences for a run that computed nothing: memory of a real GPU that is not counted."""
    return tuple(_unknown(findings))


def _unknown(findings: RunFindings | None) -> Iterator[str]:
    """Sentences on further memory of a real GPU, with its usual size where that is known."""
    from tracer.null_gpu.cudnn import answered_version, said_of_workspaces
    from tracer.null_gpu.nccl_buffers import NcclBuffers

    recordings = [cycle.source.recording for cycle in findings.parts] if findings is not None else []
    names = {recording.strings[name] for recording in recordings for name in set(recording.ops.name.tolist())}
    if any("convolution" in name for name in names):
        version = answered_version()
        yield said_of_workspaces(version, "this card") if version else _NO_CUDNN
    if any("_fft_" in name for name in names):
        yield "Estimated: cuFFT's scratch memory, as cuFFT 12 took it on an H100; its rule is not published."
    if any("_cudnn_rnn" in name for name in names):
        yield "Estimated: recurrent layers' scratch memory, as of cuDNN 9.19 on an H100; its rule is not published."
    if words := NcclBuffers.of_this_process().words:
        yield f"Not counted: NCCL's buffers, beside torch's memory: {words}."
