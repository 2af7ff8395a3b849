"""A KV cache has its kind, and the rows sum to the allocator's count."""

from __future__ import annotations

import gc

import torch
from torch import Tensor, nn

from tests.truth.isolate import Elsewhere
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule

CACHE_BYTES = 48 << 20


class Attention(nn.Module):
    """Writes its keys to a cache, and reads them all."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Linear(64, 64)
        self.kv_cache = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        self.kv_cache[: len(x)] = self.keys(x)
        return x @ self.kv_cache[: len(x)].T


def serve() -> tuple[dict[str, int], int, int]:
    """Profile calls of a model whose cache is made after the first one; bytes by category, their sum, and the count."""
    model = nn.Sequential(Attention(), Attention()).to("cuda:0")
    with torch.no_grad(), ProfileSession(model, None, schedule=Schedule(1, 0, 2, 1)) as session:
        model[0].kv_cache = model[1].kv_cache = torch.zeros(64, 64, device="cuda:0")
        model(torch.ones(64, 64, device="cuda:0"))
        # One allocation, of which each layer has a half, as its own dimensions.
        cache = torch.zeros(2, CACHE_BYTES // 512, 64, device="cuda:0")
        for layer, part in zip(model, cache, strict=True):
            layer.kv_cache = part
        del cache, layer, part
        gc.collect()
        gc.freeze()
        try:
            session.step()
            for _ in range(2):
                model(torch.ones(64, 64, device="cuda:0"))
                session.step()
        finally:
            gc.unfreeze()
    peak = session.findings.worst.peak
    return peak.by_category(), sum(row.bytes for row in peak.rows), peak.peak_bytes


class _HostMemory:
    """Pinned host memory, which a tensor of the GPU can be a view of, as vLLM's buffers of requests are."""

    def __init__(self, num_bytes: int) -> None:
        self.host = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True)
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (self.host.data_ptr(), False),
            "version": 2,
        }


def idle_beside_host_memory() -> tuple[int, int, tuple[str, ...]]:
    """Profile a step that allocates nothing; the bytes of its rows, the allocator's count, and the notes."""
    model = nn.Linear(64, 64, device="cuda:0")
    with ProfileSession(model, None, schedule=Schedule(1, 0, 1, 1)) as session:
        seen = [torch.as_tensor(_HostMemory(CACHE_BYTES), device="cuda:0") for _ in range(2)]
        assert all(tensor.is_cuda for tensor in seen)
        session.step()
        session.step()
    peak = session.findings.worst.peak
    return sum(row.bytes for row in peak.rows), peak.peak_bytes, session.notes


def test_a_cache_that_the_program_froze_is_a_kv_cache(elsewhere: Elsewhere) -> None:
    by_category, rows_bytes, counted_bytes = elsewhere(serve)
    assert by_category["KV_CACHE"] == CACHE_BYTES
    assert "UNKNOWN" not in by_category
    assert rows_bytes == counted_bytes


def test_host_memory_that_the_gpu_reads_is_in_no_row(elsewhere: Elsewhere) -> None:
    rows_bytes, counted_bytes, notes = elsewhere(idle_beside_host_memory)
    assert rows_bytes == counted_bytes == 16_896  # 64 x 64 weights, and 64 biases as 512 bytes
    assert any(
        note.startswith("96.00 MiB in tensors on cuda:0 are in no memory of torch's allocator") for note in notes
    )
