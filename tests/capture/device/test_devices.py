"""No backend's name decides: a device that torch learns of in a test is asked like any other."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tracer.capture.device import devices
from tracer.commands.workload_options import chosen_device, device_of_rank
from tracer.errors import TracerError
from tracer.sessions.workload_run import random_states_kept

ROOT = Path(__file__).resolve().parents[3]
OTHER = torch.device("privateuseone", 1)
# What is about CUDA alone: its driver, its graphs, the hint to `--on` and the null GPU.
OF_CUDA = {
    "capture/graph_captures.py",
    "commands/workload_options.py",
    "capture/device/device_blocks.py",
    "capture/torch_private/torch_history.py",
    "answers/null_run.py",
}


def register(monkeypatch: pytest.MonkeyPatch, module: SimpleNamespace) -> None:
    """As `torch._register_device_module`, which cannot be undone; torch remembers the modules that it was asked for."""
    monkeypatch.setattr(torch, "privateuseone", module, raising=False)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The module of a backend with two devices, the second current, that draws numbers from a state of its own."""
    states = [torch.tensor([3]), torch.tensor([4])]
    module = SimpleNamespace(
        device_count=lambda: 2,
        current_device=lambda: 1,
        get_device_name=lambda device: "Some accelerator",
        memory_allocated=lambda device: 1024,
        mem_get_info=lambda device: (10, 20),
        Event=SimpleNamespace,
        get_rng_state=lambda device: states[device.index],
        set_rng_state=lambda state, device: states.__setitem__(device.index, state),
        states=states,
    )
    register(monkeypatch, module)
    return module


def test_a_backend_is_asked_for_what_its_module_has(backend: SimpleNamespace) -> None:
    assert devices.is_accelerator(OTHER)
    assert devices.num_devices(OTHER) == 2
    assert devices.with_index(torch.device("privateuseone")) == OTHER
    assert devices.device_name(OTHER) == "Some accelerator"
    assert devices.allocator_counters(OTHER) == {"allocated": 1024, "free on the device": 10, "device": 20}
    assert devices.peak_allocated_bytes(OTHER) is None
    assert devices.lacks(OTHER, has_history=True, has_kernels=True) is None
    assert chosen_device("privateuseone", named=True, say=pytest.fail) == OTHER


def test_a_backend_that_has_nothing_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, SimpleNamespace())
    assert devices.allocator_counters(OTHER) == {} and devices.num_devices(OTHER) == 0
    assert not devices.has_random_state(OTHER) and not devices.has_events(OTHER)
    assert devices.lacks(OTHER, has_history=False, has_kernels=False) == (
        "What privateuseone does not offer: a history of its allocator (requested sizes, segments, and why memory ran "
        "out are left out); kernels of operators to torch's profiler (a replayed graph has none; run times are the "
        "host's); events (phases are timed by the host's clock)."
    )


def test_what_a_timing_pass_draws_is_put_back_on_the_device_too(backend: SimpleNamespace) -> None:
    workload = SimpleNamespace(model=torch.nn.Linear(1, 1), device=OTHER)
    with random_states_kept(workload):  # type: ignore[arg-type]
        backend.states[1] = torch.tensor([5])
    assert [int(state) for state in backend.states] == [3, 4]


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(TracerError, match=r"There is no device xpu:0; torch sees no device of type xpu\."):
        chosen_device("xpu:0", named=True, say=pytest.fail)


@pytest.mark.parametrize(
    ("visible", "text", "expected"),
    [(4, "cuda:0", "cuda:3"), (1, "cuda:0", "cuda:0"), (4, "cuda", "cuda:3"), (0, "cuda:0", "cuda:3")],
)
def test_each_rank_has_its_own_device_unless_it_sees_one_only(
    monkeypatch: pytest.MonkeyPatch, visible: int, text: str, expected: str
) -> None:
    """Some launchers show each rank the device that is its own, and no other."""
    monkeypatch.setattr("tracer.capture.device.devices.num_devices", lambda device: visible)
    assert device_of_rank(text, 3) == expected


def test_no_backends_name_decides() -> None:
    """A device's type is compared with the host's and with no backend's, but for what is about CUDA alone."""
    found = set()
    for path in (ROOT / "tracer").rglob("*.py"):
        name = path.relative_to(ROOT / "tracer").as_posix()
        if not name.startswith("null_gpu/") and _compares_with_a_backend(path):
            found.add(name)
    assert found == OF_CUDA


def _compares_with_a_backend(path: Path) -> bool:
    """Whether a file has `device.type == "cuda"` or the like."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if ".type " in text else ():
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            words = {one.value for side in sides for one in ast.walk(side) if isinstance(one, ast.Constant)}
            is_of_a_type = any(isinstance(side, ast.Attribute) and side.attr == "type" for side in sides)
            if is_of_a_type and words & {"cuda", "xpu", "mps", "npu", "hpu"}:
                return True
    return False
