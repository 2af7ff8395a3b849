"""Read each recording as it ends, beside the allocator's history of the same steps, and explain them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tracer.answers.failure import is_out_of_memory
from tracer.answers.findings import RunFindings
from tracer.answers.recording_findings import without_wrapped
from tracer.answers.run_history import RunHistory
from tracer.capture.compile_watch import CompileWatch, compiled_wrapper_names
from tracer.capture.device import devices
from tracer.capture.device.allocator_history import recorded_from_start
from tracer.capture.driver_looks import DriverLedger
from tracer.capture.graph_captures import GRAPH_CAPTURES, LivePool
from tracer.capture.objects.call_hooks import CallHooks
from tracer.capture.run_facts import DriverLooks
from tracer.capture.torch_private import torch_profiler
from tracer.errors import RecordingError
from tracer.sessions.observations import Observations
from tracer.sessions.on_null_gpu import allocator_history
from tracer.sessions.recording_cost import RecordingCost
from tracer.sessions.stages import Stages
from tracer.sessions.timeline_tracer import TimelineTracer
from tracer.units import MIB, format_bytes, some

if TYPE_CHECKING:
    from tracer.answers.failed_allocation import FailedAllocation
    from tracer.capture.objects.at_failure import ObjectsAtFailure
    from tracer.capture.objects.failure_look import RunAgain


_MOST_STEPS_OF_HISTORY = 10
"""Steps that the allocator's history may have when a cycle begins; with more, the history is started anew."""


class Shapes(Enum):
    """Choice of recording operators' tensors in torch.profiler, which keeps alive those that torch.func wraps."""

    RECORDED = "recorded"
    LEFT_OUT = "not recorded: torch.func was used before a recording began"
    KEPT_WRAPPED = "recorded until the end of the cycle in which torch.func was first used"


class RecordedCycles:
    """The cycles that were recorded, and the history of the one with the highest peak.

    Attributes:
        device: The run's device; the one that ran out of memory, unless one was named.
        device_of_failure: The device that had no memory left, if one had none.
        history: The allocator's history.
        driver: Looks at what the device's driver counts.
        shapes: Whether the profiler records shapes.
        at_failure: Objects that were alive when memory ran out, or None.
    """

    def __init__(
        self, device: torch.device, observed: Observations, compile_watch: CompileWatch, *, is_named: bool
    ) -> None:
        self.device = self.device_of_failure = device
        self.device_is_named = is_named
        self.history = allocator_history(device)
        self.driver = DriverLedger(device)
        self.shapes = Shapes.RECORDED
        self.at_failure: ObjectsAtFailure | None = None
        self._observed = observed
        self._tracer = TimelineTracer(
            device=device if is_named else None,
            probable_device=device,
            module_names=observed.module_names,
            known=observed.storages.observations,
            compiled=compile_watch.code,
        )
        self._num_steps_before = 0  # Steps that had ended when what is recorded began
        self._history_since = 0  # Steps that had ended when the allocator's history began
        self._run_history = RunHistory(None)
        self._graph_pools: tuple[LivePool, ...] = ()
        # Adds the recording that was dropped last, and the allocator's history at its end; None if a later one was made
        self._dropped: tuple[Callable[[], None], dict[str, Any] | None] | None = None
        self._unread_first: Callable[[], None] | None = None  # Adds the first step's recording, if that is not read
        self._findings: tuple[RunFindings, RunHistory, RunFindings] | None = None  # Those joined, and the result

    @property
    def number(self) -> int:
        """Cycles that were recorded so far."""
        return self._tracer.num_cycles + (self._unread_first is not None)

    def are_all(self, stages: Stages) -> bool:
        """True if the last cycle of the schedule has ended."""
        return stages.cost.has_ended or self.number == stages.schedule.num_repeats

    # ------------------------------------------------------------------------------------------------ while it runs
    def begin(self, num_steps: int, *, is_recorded: bool) -> None:
        """Look at what is there: the next step is the first of all or will be recorded, and nothing is recording yet.

        The allocator's history is on in all steps, for one that fails.
        """
        self._num_steps_before = num_steps
        if num_steps - self._history_since > _MOST_STEPS_OF_HISTORY:
            self.history.stop()
            self._history_since = num_steps
        self._go_over_to_history()
        self.history.start()
        self.look(is_walk=is_recorded)

    def look(self, *, is_walk: bool) -> None:
        """Note where tensors of models and optimizers lie; in a walk, all that Python holds."""
        self._observed.look(self.device, is_walk=is_walk)

    def read(self, profiler: Any, cost: RecordingCost) -> None:
        """Read what a profiler has just recorded, and free it."""
        self._add_unread_first()
        self._name_wrappers()
        self._tracer(profiler)
        recording = self._tracer.last_recording
        if recording is not None and self._num_steps_before == 0:
            self.driver.read(recording)
        self._dropped = None
        cost.has_read(recording.num_events if recording is not None else 0)
        torch_profiler.release_recording(profiler)

    def keep_first_unread(self, profiler: Any) -> None:
        """Keep the first step's recording, which is read if there is no second one."""
        self._unread_first = self._tracer.adder(profiler)
        torch_profiler.release_recording(profiler)

    def _add_unread_first(self) -> None:
        if (add := self._unread_first) is not None:
            self._unread_first = None
            self._name_wrappers()
            add()

    def keep_history(self, *, is_last: bool) -> None:
        """Keep the allocator's history if the cycle that has been read has the highest peak so far."""
        self._graph_pools = GRAPH_CAPTURES.pools(self.device)
        self._go_over_to_history()
        if self.history.is_of_higher_peak:
            self.history.dump(self.number - 1)
        if is_last:
            self.history.stop()

    def drop(self, profiler: Any) -> None:
        """Keep a recording that was cut unread, with all that Python holds at its end, in case no other is made."""
        self._name_wrappers()
        add = self._tracer.adder(profiler)
        torch_profiler.release_recording(profiler)
        self.look(is_walk=True)
        self.history.dump(0)
        self._dropped, self.history.snapshot = (add, self.history.snapshot), None

    def use_dropped(self, cost: RecordingCost) -> None:
        """Use the recording that was dropped last if there is no other."""
        self._add_unread_first()
        if self._dropped is not None:
            add, snapshot = self._dropped
            add()
            if self.history.snapshot is None:  # else memory has run out since
                self.history.snapshot = snapshot
            cost.only_dropped()

    def forget_first(self) -> None:
        """Forget the first of the cycles."""
        if self._unread_first is not None:
            self._unread_first = None
        else:
            self._tracer.forget_first()

    def _name_wrappers(self) -> None:
        self._observed.module_names.update(compiled_wrapper_names(self._observed.module_names))

    def _go_over_to_history(self) -> None:
        """Switch a session that began on the CPU to the history that records since the program used CUDA, if any."""
        if not self.history.is_offered and (device := recorded_from_start()):
            self.history = allocator_history(device)
            self.history.start()

    def dump_at_failure(self, *, is_recorded: bool) -> None:
        """Keep the history at the moment at which memory ran out."""
        self._go_over_to_history()
        self.history.dump(self.number if is_recorded else None)

    def look_where_memory_ran_out(self, error: BaseException) -> None:
        """Make the device that ran out of memory the run's device, unless one was named."""
        index = self.run_history.device_out_of_memory if is_out_of_memory(error) else None
        if index is None:
            return
        self.device_of_failure = torch.device(self.history.device.type, index)
        if not self.device_is_named:
            self.device = self.device_of_failure
            self._tracer.preferred = str(self.device)

    def look_at_objects(
        self, error: BaseException, is_evaluating: Callable[[BaseException], bool], run_again: RunAgain
    ) -> None:
        """Note objects that were alive when memory ran out."""
        from tracer.capture.objects.failure_look import look_at_failure

        evaluates = is_evaluating(error)
        self.at_failure = look_at_failure(self.device, error, is_evaluating=evaluates, run_again=run_again)

    # --------------------------------------------------------------------------------------------------------- results
    @property
    def run_history(self) -> RunHistory:
        """The allocator's history so far, to be read and joined."""
        if self._run_history.snapshot is not self.history.snapshot:
            cycle = self.history.cycle
            num_later = max(0, self.number - 1 - cycle) if cycle is not None else None
            self._run_history = RunHistory(self.history.snapshot, num_later)
        return self._run_history

    @property
    def findings(self) -> RunFindings:
        """The analysis of the recorded cycles; it runs when first asked for.

        Raises:
            RecordingError: Nothing was recorded.
        """
        alone, history = self._tracer.findings, self.run_history
        if self._findings is None or self._findings[:2] != (alone, history):
            known = self._observed.storages.observations()
            found = without_wrapped(alone) if self.shapes is Shapes.KEPT_WRAPPED else alone
            found = history.joined(found, known, self.at_failure)
            if self._graph_pools and found.device == str(self.device):
                from tracer.answers.graph_pools import graph_pools

                names = self._observed.module_names
                found = replace(
                    found, graph_pools=graph_pools(self._graph_pools, found, known=known, module_names=names)
                )
            self._findings = alone, history, found
        return self._findings[2]

    def driver_looks(self, device: torch.device) -> DriverLooks | None:
        """Return what the driver counted of a device; None where it was not asked."""
        return self.driver.seen(device, [capture for pool in self._graph_pools for capture in pool.captures])

    @property
    def found(self) -> RunFindings | None:
        """The findings, or None where nothing was recorded."""
        with suppress(RecordingError):
            return self.findings
        return None

    def device_of(self, findings: RunFindings | None) -> torch.device:
        """The device that findings are about; where there are none, the one that the run is likely to be about."""
        return self.device if findings is None else torch.device(findings.device)

    @property
    def failed_allocation(self) -> FailedAllocation | None:
        """The last allocation that a device had no memory for, explained from the allocator's history."""
        findings = self.found
        memory = devices.device_memory(self.device_of_failure)
        return self.run_history.failed_allocation(
            findings,
            self._observed.storages.observations(),
            str(self.device_of(findings)),
            self.at_failure,
            device_bytes=None if memory is None else memory[1],
        )


_LEAST_MAPPED_BYTES = MIB
"""Mapped memory below this is not worth a sentence."""
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
    """Yield sentences on what could not be observed, among them those on recordings that were lost or ended early."""
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
    yield from _of_devices(cycles, findings)
    if sum(storages.mapped_bytes.values()) >= _LEAST_MAPPED_BYTES:
        yield _mapped_files(storages.mapped_bytes)
    for device, size_bytes in storages.foreign_bytes.items():
        if size_bytes >= _LEAST_MAPPED_BYTES:
            yield (
                f"{format_bytes(size_bytes)} in tensors on {device} are in no memory of torch's allocator, such as "
                "pinned host memory that the GPU reads: they are in no row."
            )
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


def _other_devices(device: str, others: Mapping[str, int], *, named: bool) -> str:
    """A sentence on the other devices that the run used."""
    listed = ", ".join(f"{name} up to {format_bytes(most)}" for name, most in others.items())
    why = "which was named" if named else "which held most or ran out of memory"
    return (
        f"Screen and files are about {device}, {why}; the page has the others too. Other devices of the run held, each "
        f"at its own peak: {listed}."
    )
