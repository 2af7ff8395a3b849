"""The pretend accelerator itself: its allocator against our model of CUDA's, its numbers against the CPU's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.accelerator import jobs_device
from tests.allocator.recorded import reproduced
from tests.elsewhere import Elsewhere
from tracer.allocator.reproduction import Reproduction
from tracer.snapshot.load import snapshot_in_memory

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]

sizes = st.one_of(
    st.integers(1, 3000),
    st.integers(1, 30 * MIB),
    st.sampled_from([511, 512, 513, MIB - 1, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB - 1, 10 * MIB, 20 * MIB]),
)
streams = st.sampled_from([0, 0, 0, 1, 2])
requests = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), sizes, streams),
        st.tuples(st.just("allocate"), sizes, streams),
        st.tuples(st.just("free"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("use"), st.integers(0, 99), streams),
        st.tuples(st.sampled_from(["wait", "empty"]), st.just(0), st.just(0)),
    ),
    max_size=80,
)


def as_the_model_decides(found: dict[str, Any]) -> Reproduction | None:
    """What comes of serving the same requests with the model; None where the history is empty."""
    snapshot = snapshot_in_memory(found["snapshot"])
    state = next((one for one in snapshot.devices if one.device == 0 and len(one.trace)), None)
    return reproduced(snapshot, state)[0] if state is not None else None


@settings(max_examples=20, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(requests)
def check_decisions(elsewhere: Elsewhere, asked: list[jobs_device.Request]) -> None:
    # A history without one free that ended is read as one that does not record when frees end.
    found = elsewhere(jobs_device.allocate_and_free, [("allocate", 100, 0), ("free", 0, 0), *asked], 96 * MIB)
    model = as_the_model_decides(found)
    if model is None:
        return
    assert model.first_difference is None
    every = (model.addresses, model.segments, model.releases, model.failures, model.end_segments, model.end_blocks)
    assert all(one.is_exact for one in every)
    assert model.num_extra == 0
    assert model.failures.recorded == len(found["failed"])
    assert model.peak_bytes == found["stats"]["reserved_bytes.all.peak"]


def test_every_decision_is_that_of_the_model_of_cudas_allocator(elsewhere: Elsewhere) -> None:
    """Addresses, segments, releases, retries, failures, and blocks that wait for other streams."""
    check_decisions(elsewhere)


def test_the_counters_are_those_of_the_snapshot(elsewhere: Elsewhere) -> None:
    asked = [("allocate", n, n % 2) for n in (100, 3 * MIB, 700, 12 * MIB)] + [("use", 1, 1), ("free", 1, 0)]
    found = elsewhere(jobs_device.allocate_and_free, asked, 96 * MIB)
    segments = [one for one in found["snapshot"]["segments"] if one["device"] == 0]
    for counter, key in (("reserved_bytes", "total_size"), ("active_bytes", "active_size")):
        assert found["stats"][f"{counter}.all.current"] == sum(one[key] for one in segments)
    assert found["stats"]["allocated_bytes.all.current"] == sum(one["allocated_size"] for one in segments)
    assert found["stats"]["requested_bytes.all.current"] == sum(one["requested_size"] for one in segments)
    # The block of 3 MiB was freed while another stream used it.
    states = [block["state"] for segment in segments for block in segment["blocks"]]
    assert states.count("active_pending_free") == 1
    assert found["stats"]["active_bytes.all.current"] - found["stats"]["allocated_bytes.all.current"] == 3 * MIB


def test_out_of_memory_is_said_in_cudas_words(elsewhere: Elsewhere) -> None:
    """Of 64 MiB, 20 are reserved, and 3 of them in use: 50 more do not fit."""
    found = elsewhere(jobs_device.run_out, 64 * MIB)
    assert found["type"] == "OutOfMemoryError"
    assert found["message"].startswith(
        "PRETEND out of memory. Tried to allocate 50.00 MiB. GPU 0 has a total capacity of 64.00 MiB of which 44.00 "
        "MiB is free. Of the allocated memory 3.00 MiB is allocated by PyTorch, and 17.00 MiB is reserved by PyTorch "
        "but unallocated."
    )
    assert found["oom"] == {"action": "oom", "device_free": 44 * MIB, "size": 50 * MIB}
    assert found["line"] == found["frame"]


def test_time_is_the_devices_own(elsewhere: Elsewhere) -> None:
    """Three kernels take three times as long as one, whatever the host does meanwhile, and end when waited for."""
    found = elsewhere(jobs_device.time_kernels)
    assert found["elapsed_ms"] == pytest.approx([1 * found["kernel_ms"], 3 * found["kernel_ms"]])
    assert found["done"] == [False, True]
    assert found["behind another stream"] == pytest.approx(2 * found["kernel_ms"])


def test_random_numbers_are_the_devices_own(elsewhere: Elsewhere) -> None:
    found = elsewhere(jobs_device.draw)
    assert found["again"] == found["first"] != found["other device"]
    assert found["host before"] == found["host after"]


@pytest.mark.parametrize("name", ["adamw_fused", "lbfgs", "lstm"])
def test_it_computes_what_the_cpu_computes(elsewhere: Elsewhere, name: str) -> None:
    on_cpu, on_device = (elsewhere(jobs_device.sums_after_steps, name, device) for device in ("cpu", "pretend:0"))
    np.testing.assert_allclose(on_device, on_cpu, rtol=2e-2, atol=1e-2)


def test_it_is_registered_in_a_process_of_its_own() -> None:
    """Here it would take `torch.accelerator` from a GPU, and autograd's streams with it."""
    assert not hasattr(torch, "pretend")


def test_the_program_never_names_it() -> None:
    """Whatever works here works because torch says so, and for other backends too."""
    for path in [*ROOT.glob("tracer/**/*.py"), ROOT / "main.py", *ROOT.glob("models/*.py")]:
        assert "pretend" not in path.read_text(encoding="utf-8").lower(), path
