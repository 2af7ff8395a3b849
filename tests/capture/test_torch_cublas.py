"""Sizes of cuBLAS's workspaces by version and card, as the null GPU shows them, and which blocks are as large."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tracer.capture.torch_private import torch_cublas
from tracer.units import MIB

DEVICE = torch.device("cuda", 0)
SMALL_BYTES = 8_519_680


@pytest.mark.parametrize(
    ("version", "capability", "size_bytes"),
    [
        ((2, 11), (8, 0), SMALL_BYTES),
        ((2, 11), (9, 0), 32 * MIB),
        ((2, 11), (10, 0), SMALL_BYTES),
        ((2, 12), (8, 9), SMALL_BYTES),
        ((2, 12), (9, 0), 32 * MIB),
        ((2, 12), (10, 0), 32 * MIB),
    ],
)
def test_the_card_and_the_version_decide(
    version: tuple[int, int], capability: tuple[int, int], size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch_cublas, "_TORCH", version)
    assert torch_cublas.workspace_bytes(capability) == size_bytes


def test_what_is_set_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8:4096:2")
    assert torch_cublas.workspace_bytes((9, 0)) == (16 * 8 + 4096 * 2) * 1024


@pytest.fixture
def blocks_on_an_a100(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two segments; a workspace of each library is in use in the first, and a freed one; others lie beside them."""

    def block(size: int, state: str = "active_allocated") -> dict[str, Any]:
        return {"size": size, "requested_size": size, "state": state}

    first = [block(512), block(SMALL_BYTES), block(MIB), block(SMALL_BYTES, "inactive"), block(32 * MIB)]
    segments = [
        {"address": 1 << 30, "device": 0, "blocks": first},
        {"address": 1 << 31, "device": 1, "blocks": [block(SMALL_BYTES)]},
    ]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.delenv("CUBLASLT_WORKSPACE_SIZE", raising=False)


@pytest.mark.usefixtures("blocks_on_an_a100")
def test_where_torch_does_not_tell_the_sizes_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_cuda_getCublasWorkspaceSize", "_cuda_getCublasLtWorkspaceSize"):
        monkeypatch.delattr(torch._C, name, raising=False)
    start = (1 << 30) + 512
    assert torch_cublas.cublas_workspaces(DEVICE) == [(start, SMALL_BYTES), (start + SMALL_BYTES, MIB)]
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "0")
    assert torch_cublas.cublas_workspaces(DEVICE) == [(start, SMALL_BYTES)]


@pytest.mark.usefixtures("blocks_on_an_a100")
def test_where_torch_tells_the_sizes_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getCublasWorkspaceSize", lambda: 512, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCublasLtWorkspaceSize", lambda: 0, raising=False)
    assert torch_cublas.cublas_workspaces(DEVICE) == [(1 << 30, 512)]


def test_other_devices_have_none() -> None:
    assert torch_cublas.cublas_workspaces(torch.device("cpu")) == []
