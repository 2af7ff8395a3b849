"""Memory that several storages show is counted once, and what is mapped from a file is not allocated."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tracer.analysis.kinds import Kind
from tracer.capture.device.host_memory import MappedFile, file_at, gaps, mapped_files
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule

SIDE = 512
WEIGHT_BYTES = 4 * SIDE * SIDE


@pytest.fixture(autouse=True)
def _nothing_of_others() -> None:
    gc.collect()


def trained(model: nn.Module, batch: Tensor | None = None) -> ProfileSession:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ProfileSession(model, optimizer, device="cpu", schedule=Schedule(1, 1, 1, 1)) as session:
        for _ in range(session.schedule.num_steps):
            optimizer.zero_grad()
            model(torch.randn(4, SIDE) if batch is None else batch).square().mean().backward()
            optimizer.step()
            session.step()
    return session


def by_kind(session: ProfileSession) -> Counter[Kind]:
    """Bytes at the peak, which are as many as the independent count has."""
    peak, found = session.findings.worst.peak, Counter[Kind]()
    assert (
        int(peak.blocks.size_bytes.sum()) == peak.peak_bytes == session.findings.worst.lifetimes.allocator_bytes.max()
    )
    for kind, size_bytes in zip(peak.blocks.kind.tolist(), peak.blocks.size_bytes.tolist(), strict=True):
        found[Kind(kind)] += size_bytes
    return found


def saved(folder: Path, *names: str) -> Path:
    path = folder / "weights.pt"
    torch.save({name: torch.randn(SIDE, SIDE) for name in names}, path)
    return path


def test_parameters_in_a_mapped_file_are_there_once(tmp_path: Path) -> None:
    """As of safetensors: the file is a storage of its own, and each tensor one within it."""
    held_before = by_kind(trained(nn.Linear(SIDE, SIDE, bias=False)))[Kind.HELD]
    model = nn.Linear(SIDE, SIDE, bias=False)
    model.load_state_dict(torch.load(saved(tmp_path, "weight"), mmap=True), assign=True)
    session = trained(model)
    found = by_kind(session)
    assert found[Kind.PARAMETER] == WEIGHT_BYTES
    assert found[Kind.HELD] <= held_before + 1000, "the storage of the file is no second copy"
    assert not any("mapped" in note for note in session.notes)


def test_what_of_a_mapped_file_no_model_has_is_said_and_not_counted(tmp_path: Path) -> None:
    model = nn.Linear(SIDE, SIDE, bias=False)
    tensors = torch.load(saved(tmp_path, "weight", "teacher"), mmap=True)
    model.load_state_dict({"weight": tensors["weight"]}, assign=True)
    session = trained(model)
    found = by_kind(session)
    assert found[Kind.PARAMETER] == WEIGHT_BYTES and found[Kind.HELD] < WEIGHT_BYTES
    (note,) = (note for note in session.notes if "mapped" in note)
    assert note.startswith("1.00 MiB in tensors outside of models are mapped from files (weights.pt).")


def test_a_batch_of_a_mapped_file_is_not_allocated(tmp_path: Path) -> None:
    rows = np.memmap(tmp_path / "rows.bin", np.float32, "w+", shape=(1024, SIDE))
    data = torch.from_numpy(rows)
    session = trained(nn.Linear(SIDE, 8), data[:64])
    found = by_kind(session)
    assert found[Kind.INPUT] + found[Kind.HELD] < data.nbytes
    assert any("(rows.bin)" in note for note in session.notes)


def test_slices_of_an_array_lie_in_it() -> None:
    rows = np.ones((1024, SIDE), np.float32)
    whole, test = torch.from_numpy(rows), torch.from_numpy(rows[1000:])
    assert test.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()
    both = by_kind(trained(nn.Linear(SIDE, 8), whole[:64]))
    del test
    assert by_kind(trained(nn.Linear(SIDE, 8), whole[:64])).total() == both.total()


class _Diagonal(nn.Linear):
    """The steps of a diagonal, times their number, reach beyond the storage."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.weight.diagonal()


def test_a_view_in_large_strides_spans_no_more_than_its_storage() -> None:
    found = by_kind(trained(_Diagonal(SIDE, SIDE, bias=False)))
    assert found[Kind.PARAMETER] == WEIGHT_BYTES


def test_files_and_what_lies_in_them(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "a file of mine", np.uint8, "w+", shape=(100_000,))
    address = mapped.ctypes.data
    files = mapped_files()
    found = file_at(files, address + 99_999)
    assert found is not None and found.path == str(tmp_path / "a file of mine") and found.begin == address
    assert file_at(files, torch.ones(10).data_ptr()) is None
    shared = torch.ones(10).share_memory_()
    assert file_at(files, shared.data_ptr()) is None and not any(".so" in each.path for each in files)
    assert file_at((MappedFile(10, 20, "a"),), 20) is None


def test_gaps() -> None:
    assert gaps(0, 10, []) == [(0, 10)]
    assert gaps(0, 10, [(4, 6), (2, 4)]) == [(0, 2), (6, 10)]
    assert gaps(0, 10, [(0, 3), (8, 20)]) == [(3, 8)]
    assert gaps(0, 10, [(0, 10)]) == []
    assert gaps(0, 10, [(12, 15)]) == [(0, 10)]
