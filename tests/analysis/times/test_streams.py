"""Streams by name: CUDA's default stream, and those on which one sort of work alone runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trace import chrome
from tracer.analysis.times.streams import StreamTimes, stream_times
from tracer.trace.load import load_trace


def streams_of(tmp_path: Path, call: str, kernels: list[chrome.Event]) -> tuple[StreamTimes, ...]:
    events = [*chrome.training_step(), chrome.launch(call, 12, 1, correlation=1), *kernels]
    work = load_trace(chrome.write(tmp_path / "trace.json", events)).work
    return stream_times(work.take(work.device == 0))


def test_streams_by_hand(tmp_path: Path) -> None:
    kernels = [
        chrome.kernel("relu", 20, 6, correlation=1),
        chrome.kernel("Memcpy", 26, 1, category="gpu_memcpy"),
        chrome.kernel("ncclDevKernel_AllReduce", 20, 9, stream=20),
        chrome.kernel("Memcpy", 30, 2, stream=20, category="gpu_memcpy"),
        chrome.kernel("Memcpy", 20, 3, stream=21, category="gpu_memcpy"),
        chrome.kernel("relu", 20, 4, stream=22),
        chrome.kernel("ncclDevKernel_AllReduce", 26, 5, stream=22),
    ]
    found = streams_of(tmp_path, "cudaLaunchKernel", kernels)
    assert found == (
        StreamTimes(7, "default", 6000, 0, 1000, 2),
        StreamTimes(20, "collectives", 0, 9000, 2000, 2),
        StreamTimes(21, "copies", 0, 0, 3000, 1),
        StreamTimes(22, "", 4000, 5000, 0, 2),
    )
    assert [stream.words for stream in found][1:3] == ["stream 20 (collectives)", "stream 21 (copies)"]


@pytest.mark.parametrize(("call", "name"), [("cudaLaunchKernel", "default"), ("hipLaunchKernel", "")])
def test_the_default_stream_has_its_number_under_cuda_alone(tmp_path: Path, call: str, name: str) -> None:
    (found,) = streams_of(tmp_path, call, [chrome.kernel("relu", 20, 6, correlation=1)])
    assert (found.stream, found.name) == (7, name)
