"""Optimizers with state in 8 bits: which of torch's they stand for, and with which options."""

from __future__ import annotations

import pytest
import torch

from tracer.changes.kinds.state_in_8_bits import EightBitLibrary, keep_options, library_for


@pytest.mark.parametrize(
    ("optimizer_of", "package", "why"),
    [
        (lambda p: torch.optim.AdamW(p), "bitsandbytes", ""),
        (lambda p: torch.optim.Adam(p, weight_decay=0.1), "torchao", ""),
        (lambda p: torch.optim.Adam(p, weight_decay=0.1), "bitsandbytes", "bitsandbytes cannot stand for it;"),
        (lambda p: torch.optim.SGD(p), "bitsandbytes", "SGD is not torch's Adam or AdamW."),
        (lambda p: torch.optim.Adam(p, maximize=True), "torchao", "Adam has maximize=True,"),
        (lambda p: torch.optim.Adam([torch.ones(2, dtype=torch.complex64)]), "torchao", "some parameters are complex."),
        (lambda p: torch.optim.Adam(p), "", "neither bitsandbytes nor torchao is installed."),
    ],
)
def test_what_a_library_can_stand_for(optimizer_of: object, package: str, why: str) -> None:
    optimizer = optimizer_of([torch.nn.Parameter(torch.ones(2))])  # type: ignore[operator]
    library, reason = library_for(optimizer, [EightBitLibrary(package)] if package else [])
    assert (library is None) == bool(why) and reason.startswith(why)


def test_a_rate_that_is_a_tensor_is_filled_and_stays_the_same_one() -> None:
    own = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=torch.tensor(0.1))
    rate = own.param_groups[0]["lr"]
    keep_options(own, [{**own.param_groups[0], "lr": 0.05, "weight_decay": 0.5}])
    assert own.param_groups[0]["lr"] is rate and float(rate) == pytest.approx(0.05)
    assert own.param_groups[0]["weight_decay"] == 0.5
