"""What filled the device: to the byte on every workload, a plain count beside it, and torch's known errors mended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.histories import Event, Key, known_of, recording_of
from tests.pieces import Pieces, tiny_fno
from tests.training_steps import Recorded, each_workload
from tracer.answers.findings import RunFindings
from tracer.answers.peak import Peak
from tracer.answers.recording_findings import find_in_cycle
from tracer.answers.rows import Row, group_rows
from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.live_tensors import LiveTensors
from tracer.capture.recording import Recording
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule
from tracer.sessions.workload_run import run_profile


def counted_by_hand(recording: Recording, device: int) -> int:
    """The allocator's peak: its running total plus the distinct storages that were there before, event by event."""
    a, keys = recording.allocations, recording.keys
    rows = sorted((row for row in range(len(a.time_ns)) if a.device[row] == device), key=lambda row: a.time_ns[row])
    made = {int(a.allocation_id[row]) for row in rows if a.size_bytes[row] > 0}
    before: dict[int, tuple[int, int]] = {}  # address: bytes, number
    for key in range(len(keys.id)):
        if keys.device[key] == device and int(keys.allocation_id[key]) not in made:
            before.setdefault(int(keys.address[key]), (int(keys.size_bytes[key]), int(keys.allocation_id[key])))
    for row in rows:
        if a.size_bytes[row] < 0 and a.key[row] < 0 and int(a.allocation_id[row]) not in made:
            before[int(a.address[row])] = (-int(a.size_bytes[row]), int(a.allocation_id[row]))
    level = sum(size for size, _ in before.values())
    last_total = int(a.total_allocated_bytes[rows[0]] - a.size_bytes[rows[0]])
    peak = 0
    for row in rows:
        address, size = int(a.address[row]), int(a.size_bytes[row])
        if a.assumed[row]:
            level += size
        else:
            level += int(a.total_allocated_bytes[row]) - last_total
            last_total = int(a.total_allocated_bytes[row])
        if size < 0:
            before = {at: block for at, block in before.items() if block[1] != a.allocation_id[row]}
        else:
            for at, (old_size, _) in list(before.items()):
                if at < address + size and address < at + old_size:
                    level -= before.pop(at)[0]
        peak = max(peak, level)
    return peak


@each_workload
def test_on_every_workload_rows_blocks_and_allocator_agree_to_the_byte(
    name: str, recorded: Callable[[str], Recorded]
) -> None:
    for cycle in recorded(name).cycles:
        recording, peak = cycle.source.recording, cycle.peak
        assert sum(row.bytes for row in peak.rows) == int(peak.blocks.size_bytes.sum()) == peak.peak_bytes
        assert sum(row.count for row in peak.rows) == len(peak.blocks.size_bytes)
        assert peak.peak_bytes == peak.allocator_peak_bytes
        assert peak.allocator_peak_bytes == counted_by_hand(recording, recording.devices.index("cpu"))
        assert sum(peak.by_category().values()) == peak.peak_bytes
        assert [row.bytes for row in peak.rows] == sorted((row.bytes for row in peak.rows), reverse=True)


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_the_first_of_equal_peaks_wins() -> None:
    events = [Event(10, 100, 1), Event(10, -100, 1), Event(10, 60, 2), Event(200, 40, 3)]
    peak = find_in_cycle(recording_of(events)).peak
    assert (peak.peak_bytes, peak.time_ns) == (100, int(recording_of(events).allocations.time_ns[0]))
    assert [row.bytes for row in peak.rows] == [100]


def test_what_cuda_counts_and_nothing_shows_is_a_row_of_its_own() -> None:
    recording = recording_of([Event(0, 512, 1, total_bytes=10_000)], devices=("cuda:0",))
    peak = find_in_cycle(recording).peak
    assert peak.peak_bytes == peak.allocator_peak_bytes == 10_000
    assert peak.by_category() == {"BEFORE_RECORDING": 9_488, "HELD": 512}


# ---- what torch gets wrong and a session knows -----------------------------------------------------------------------

ONE_STEP = Schedule(0, 1, 1, 1)


def bytes_of(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def rows_in(peak: Peak, category: str) -> list[Row]:
    return [row for row in peak.rows if row.category == category]


class SpectralModel(nn.Module):
    """Like a spectral convolution that keeps its weight in a child that is never called, as neuraloperator's does."""

    def __init__(self) -> None:
        super().__init__()
        self.lifting, self.held, self.projection = nn.Linear(12, 32), nn.Module(), nn.Linear(32, 3)
        self.held.tensor = nn.Parameter(0.1 * torch.randn(32, 32, 5, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.lifting(x)[:, :, None].expand(-1, -1, 16))
        padded = torch.zeros(spectrum.shape, dtype=spectrum.dtype)
        padded[..., :5] = torch.einsum("bim,iom->bom", spectrum[..., :5], self.held.tensor)
        return self.projection(torch.fft.irfft(padded, n=16).mean(-1))  # type: ignore[no-any-return]


WEIGHT_BYTES = 32 * 32 * 5 * 8


def run_alone(workload: Any, schedule: Schedule) -> RunFindings | None:
    """A run that does not see what other tests of this process keep alive."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracer.sessions.observations.live_tensors", lambda models: LiveTensors((), is_complete=True))
        return run_profile(workload, schedule=schedule, timing=False).findings


@cache
def peak_after_backward(*, optimizer: bool) -> Peak:
    """The peak is in the last step, after backward, with all gradients alive: something large is made there."""

    def before(piece: str, step: int) -> None:
        if piece == "optimizer_step":
            torch.empty(1 << 20, step + 1)

    workload = Pieces(SpectralModel(), torch.optim.AdamW if optimizer else None, before=before)
    findings = run_alone(workload, Schedule(0, 1, 2, 1))
    assert findings is not None
    return findings.worst.peak


def test_gradients_are_gradients_in_the_last_step_too() -> None:
    peak = peak_after_backward(optimizer=True)
    assert peak.step == "ProfilerStep#2"
    (row,) = (row for row in rows_in(peak, "GRADIENT") if row.name == "held.tensor")
    assert (row.bytes, row.evidence) == (WEIGHT_BYTES, "address of a live, named tensor")
    assert row.torch_category != "GRADIENT", "torch itself has lost it: no later step shows that it is one"
    assert sum(row.bytes for row in rows_in(peak, "GRADIENT")) == bytes_of(SpectralModel().parameters())


def test_weights_are_parameters_even_without_an_optimizer() -> None:
    (row,) = (row for row in rows_in(peak_after_backward(optimizer=False), "PARAMETER") if row.name == "held.tensor")
    assert (row.bytes, row.evidence) == (WEIGHT_BYTES, "address of a live, named tensor")
    assert row.torch_category == "INPUT", "torch knows the parameters of called modules only"


def test_optimizer_state_is_exact() -> None:
    rows = rows_in(peak_after_backward(optimizer=True), "OPTIMIZER_STATE")
    moments = [row.bytes for row in rows if not (row.name or "").endswith(".step")]
    assert sum(moments) == 2 * bytes_of(SpectralModel().parameters())
    assert {row.module for row in rows} == {"lifting", "held", "projection"}


@cache
def fno_peak(spectrum: str) -> tuple[Peak, int]:
    workload = replace(tiny_fno(spectrum=spectrum), optimizer=None)
    findings = run_alone(workload, ONE_STEP)
    assert findings is not None
    return findings.worst.peak, bytes_of(workload.model.parameters())


@pytest.mark.parametrize("spectrum", ["new_zeros", "torch_zeros"])
def test_a_spectrum_is_no_parameter(spectrum: str) -> None:
    """Nothing that the step makes is one: all bytes of the category are named parameters."""
    peak, parameter_bytes = fno_peak(spectrum)
    rows = rows_in(peak, "PARAMETER")
    assert all(row.name is not None and row.op is None for row in rows)
    assert sum(row.bytes for row in rows) == parameter_bytes
    # complex64: channels in, channels out, modes of axis 1, modes of axis 2
    assert {row.bytes for row in rows if row.name == "blocks.0.spectral.weight"} == {4 * 4 * 4 * 3 * 8}


def test_every_role_that_a_session_sees_is_in_the_peak() -> None:
    """Batch norm's buffers and the batch too, by name."""
    findings = run_profile(Pieces(), schedule=ONE_STEP, timing=False).findings
    assert findings is not None
    named = {(row.category, row.name) for row in findings.worst.peak.rows if row.name is not None}
    assert ("BUFFER", "1.running_mean") in named
    assert ("INPUT", "batch[0]") in named
    assert ("PARAMETER", "0.weight") in named
    assert ("OPTIMIZER_STATE", "4.weight.exp_avg_sq") in named


def test_a_session_on_a_model_without_tensors_explains_the_cpu() -> None:
    with ProfileSession(torch.nn.Identity(), schedule=ONE_STEP) as session:
        for _ in range(3):
            torch.zeros(100)
            session.step()
    assert session.findings.worst.peak.device == "cpu"
    peak = session.findings.worst.peak
    assert peak.counted.counter_bytes == 400
    assert sum(row.bytes for row in peak.rows if row.phase != "before recording") == 400


@each_workload
def test_on_every_workload_no_two_rows_are_equal(name: str, recorded: Callable[[str], Recorded]) -> None:
    for cycle in recorded(name).cycles:
        rows = cycle.peak.rows
        assert not [row for row, n in Counter(replace(row, bytes=0, count=0) for row in rows).items() if n > 1]


def test_every_column_that_rows_alone_have_is_asked_for() -> None:
    """A maker may lack a column, so a misspelled one would say nothing."""
    blocks = find_in_cycle(recording_of([Event(0, 100, 1)])).blocks
    asked: set[str] = set()

    class Said(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            asked.add(name)
            return super().get(name, default)

    group_rows(replace(blocks, said=Said(blocks.said)))
    assert asked == {*blocks.said}


def test_what_is_not_known_is_said_and_counted() -> None:
    peak = find_in_cycle(recording_of([Event(500, 7, 2)], [Key(10, 100, 1)])).peak
    assert rows_of(peak) == {
        ("BEFORE_RECORDING", 100, "allocated before the recording, role unknown", "before recording"),
        ("HELD", 7, "made outside forward, backward and optimizer, and kept", "other"),
    }


def test_a_held_object_has_its_role_and_name() -> None:
    recording = recording_of([Event(500, 7, 2)], [Key(10, 100, 1)])
    known = known_of((-5, 10, 100, Role.PARAMETER, "blocks.0.weight"), (1, 500, 7, Role.INPUT, "batch[0]"))
    rows = {row.category: row for row in find_in_cycle(recording, known=known).peak.rows}
    assert (rows["PARAMETER"].name, rows["PARAMETER"].module) == ("blocks.0.weight", "blocks.0")
    assert (rows["INPUT"].name, rows["INPUT"].module) == ("batch[0]", None)
    assert {row.evidence for row in rows.values()} == {"address of a live, named tensor"}


def rows_of(peak: Peak) -> set[tuple[str, int, str, str]]:
    return {(row.category, row.bytes, row.evidence, row.phase) for row in peak.rows}


def test_equal_blocks_are_one_row_and_a_block_of_unknown_request_makes_its_rows_unknown() -> None:
    recording = recording_of([Event(500, 7, 1), Event(600, 9, 2), Event(700, 11, 3)])
    found = find_in_cycle(recording)

    def row_of(*requested: int) -> tuple[int, int, int | None]:
        blocks = replace(found.blocks, requested_bytes=np.array(requested, np.int64))
        ((row,), _) = group_rows(blocks)
        return row.bytes, row.count, row.requested_bytes

    assert row_of(5, 6, 7) == (27, 3, 18)
    assert row_of(5, -1, 7) == (27, 3, None)
    assert row_of(-1, 6, 7) == (27, 3, None)
