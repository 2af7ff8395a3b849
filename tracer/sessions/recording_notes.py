"""Say what of a profiled run could not be observed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tracer.answers.findings import RunFindings
from tracer.capture.compile_watch import CompileWatch
from tracer.capture.device import devices
from tracer.capture.graph_captures import GRAPH_CAPTURES
from tracer.capture.objects.call_hooks import CallHooks
from tracer.sessions.observations import Observations
from tracer.sessions.recorded_cycles import RecordedCycles, Shapes
from tracer.units import MIB, format_bytes, some

_LEAST_MAPPED_BYTES = MIB
"""Mapped memory below this is not worth a sentence."""
_ON_META = (
    "Parameters of the model are on the meta device, where nothing is allocated: what a step takes elsewhere is not in "
    "the peak. predict says what it would be."
)
_KEEPS_WRAPPED = (
    "torch.profiler keeps what grad and vmap of torch.func wrap alive until the first cycle has ended: its peak is "
    "larger by that than without a profiler. With a step before it, as by default, that is known in time and avoided."
)
_RECORDS_NO_SHAPES = (
    "The step uses grad, vmap or jvp of torch.func. torch.profiler would keep what they wrap alive, so that it did not "
    "record which tensors operators use: kinds go by when memory was made and freed. What functional_call puts in the "
    "place of parameters it does keep, from the first recorded step until the cycle has ended, so that a peak may be "
    "larger by that than without a profiler."
)


def recording_notes(
    cycles: RecordedCycles,
    observed: Observations,
    hooks: CallHooks,
    compile_watch: CompileWatch,
    *,
    ended: Iterable[str],
) -> Iterator[str]:
    """Yield sentences on what could not be observed.

    Args:
        ended: Why recordings were lost, or ended early; empty sentences where they were not.
    """
    findings, storages = cycles.found, observed.storages
    yield from cycles.run_history.notes
    yield from hooks.refused
    if (fault := compile_watch.fault) is not None:
        yield (
            "What torch.compile generated could not be read, so its memory has the name of its region: "
            f"{type(fault).__name__}: {fault}"
        )
    if kinds := storages.unobserved:
        yield f"Tensors without an address of their own are known only by what operators did: {', '.join(kinds)}."
    if (fault := GRAPH_CAPTURES.fault) is not None:
        yield f"The capture of a CUDA graph could not be recorded: {type(fault).__name__}: {fault}"
    if storages.sees_transforms:
        yield _KEEPS_WRAPPED if cycles.shapes is Shapes.KEPT_WRAPPED else _RECORDS_NO_SHAPES
    yield from filter(None, ended)
    if observed.is_on_meta:
        yield _ON_META
    yield from _of_devices(cycles, findings)
    if sum(storages.mapped_bytes.values()) >= _LEAST_MAPPED_BYTES:
        yield _mapped_files(storages.mapped_bytes)
    foreign = storages.foreign_bytes.items()
    yield from (_foreign(device, size) for device, size in foreign if size >= _LEAST_MAPPED_BYTES)
    if observed.are_cut:
        yield "More graphs are alive than were examined: part of what they keep may be missing."


def _of_devices(cycles: RecordedCycles, findings: RunFindings | None) -> Iterator[str]:
    """Sentences on what the device does not tell, and on the other devices of the run."""
    device, recorded = cycles.device_of(findings), findings.parts if findings is not None else ()
    has_kernels = not recorded or any(part.source.recording.kernels is not None for part in recorded)
    has_kernels |= not cycles.history.is_timed
    lacking = devices.lacks(device, has_history=cycles.history.is_offered, has_kernels=has_kernels)
    if lacking is not None:
        yield lacking
    if findings is not None and findings.other_devices:
        yield _other_devices(findings.device, findings.other_devices, named=cycles.device_is_named)


def _mapped_files(mapped_bytes: Mapping[str, int]) -> str:
    """A sentence on the mapped files that tensors of no model show."""
    largest = max(mapped_bytes, key=mapped_bytes.__getitem__)
    name = Path(largest).name + (f" and {some(len(mapped_bytes) - 1, 'other')}" if len(mapped_bytes) > 1 else "")
    return (
        f"{format_bytes(sum(mapped_bytes.values()))} in tensors outside of models are mapped from files ({name}). "
        "Mapped files are not allocated, and are not counted."
    )


def _foreign(device: str, size_bytes: int) -> str:
    """A sentence on tensors of a device whose memory its allocator has not reserved."""
    return (
        f"{format_bytes(size_bytes)} in tensors on {device} are in no memory of torch's allocator, such as pinned host "
        "memory that the GPU reads: they are in no row."
    )


def _other_devices(device: str, others: Mapping[str, int], *, named: bool) -> str:
    """A sentence on the other devices that the run used."""
    listed = ", ".join(f"{name} up to {format_bytes(most)}" for name, most in others.items())
    why = "which was named" if named else "which held most or ran out of memory"
    return (
        f"Screen and files are about {device}, {why}; the page has the others too. Other devices of the run held, each "
        f"at its own peak: {listed}."
    )
