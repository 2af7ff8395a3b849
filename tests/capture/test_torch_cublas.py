"""Sizes of cuBLAS's workspaces by version and card, as the null GPU shows them."""

from __future__ import annotations

import pytest

from tracer.capture.torch_private import torch_cuda
from tracer.units import MIB

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
    monkeypatch.setattr(torch_cuda, "TORCH", version)
    assert torch_cuda.workspace_bytes(capability) == size_bytes


def test_what_is_set_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8:4096:2")
    assert torch_cuda.workspace_bytes((9, 0)) == (16 * 8 + 4096 * 2) * 1024
