"""The flight recorder on a device: a late failure is explained from the ring and the counters alone."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.on_null_gpu.small_cards import leave_bytes
from tests.skips import by_default
from tests.snapshot.explained import explain_snapshot
from tests.truth.isolate import Elsewhere, runs_elsewhere
from tracer.capture.torch_private.torch_cuda import are_workspaces_kept
from tracer.capture.torch_private.torch_history import allocator_history_enabled
from tracer.sessions.training_watch import TrainingWatch, watch_training
from tracer.snapshot.load import load_snapshot

DEVICE = "cuda:0"
MIB = 1 << 20


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 16)).to(DEVICE)
    return model, torch.optim.AdamW(model.parameters())


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, rows: int = 32) -> Tensor:
    optimizer.zero_grad()
    loss: Tensor = model(torch.randn(rows, 16, device=DEVICE)).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss


def report(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "watch.json").read_text())
    values["text"] = (folder / "watch.txt").read_text()
    return values


def remember(history: list[Tensor], device: str) -> None:
    history.append(torch.empty(1 << 18, device=device))


def watch_steps(num_steps: int, inside: Callable[[int], object], folder: Path) -> dict[str, Any]:
    model, optimizer = parts()
    with watch_training(model, optimizer, save_dir=folder, screen="none") as watch:
        for step in range(num_steps):
            train_step(model, optimizer)
            inside(step)
            watch.step()
        watch.write()
    assert watch.fault is None
    return report(folder)


def tried_again() -> tuple[int, list[str], dict[str, Any]]:
    """Convolutions for which cuDNN, in benchmark mode, is refused workspaces and takes others; then a real failure.

    Returns:
        The refusals of the first part, the names of its files, and what is said of the failure behind it.
    """
    torch.backends.cudnn.benchmark = True
    model = nn.Conv2d(256, 256, 3, padding=1).to(DEVICE)
    batch = torch.randn(8, 256, 64, 64, device=DEVICE)
    with tempfile.TemporaryDirectory() as name:
        with watch_training(model, save_dir=name, screen="none") as watch:
            for left in (120, 80, 70, 60):
                torch.cuda.empty_cache()
                free_bytes, _ = torch.cuda.mem_get_info(0)
                taken = torch.empty(free_bytes - left * MIB, dtype=torch.uint8, device=DEVICE)
                model(batch).sum().backward()
                model.zero_grad()
                del taken
                watch.step()
            num_refused = torch.cuda.memory_stats(0)["num_ooms"]
            names = sorted(path.name for path in Path(name).iterdir())
            with suppress(torch.OutOfMemoryError):
                torch.empty(100 << 30, dtype=torch.uint8, device=DEVICE)
            watch.step()
        return num_refused, names, report(Path(name))


# cuBLAS's, in each step; where torch keeps workspaces, the fixture allows none.
WORKSPACE = 0 if are_workspaces_kept() else 32 * MIB


def line_of(function: str) -> int:
    """Return the number of the first line in the body of a function of this file."""
    text = Path(__file__).read_text().splitlines()
    return next(at for at, line in enumerate(text, 1) if line.startswith(f"def {function}(")) + 1


@pytest.mark.parametrize("num_steps", [200, pytest.param(2000, marks=pytest.mark.slow)])
@runs_elsewhere
def test_a_leak_of_a_mebibyte_a_step_is_named_with_line_holder_growth_and_end(num_steps: int, tmp_path: Path) -> None:
    """It is kept from a line that nobody profiled."""
    leave_bytes(0, (num_steps - 2) * MIB + WORKSPACE)
    model, optimizer = parts()
    history: list[Tensor] = []
    step = 0
    with (
        suppress(torch.OutOfMemoryError),
        watch_training(model, optimizer, save_dir=tmp_path, screen="none") as watch,
    ):
        for step in range(num_steps):  # noqa: B007 - how far it came
            train_step(model, optimizer)
            remember(history, DEVICE)
            watch.step()
    found, ended_in = report(tmp_path), step + 1
    assert found["event"]["what"] == "out of memory" and watch.fault is None
    assert ended_in > 0.98 * num_steps
    growth = found["findings"]["growth"]
    assert growth["trend"]["bytes_per_step"] == MIB
    assert abs(growth["end_step"] - ended_in) <= 2
    (kept, *_) = found["kept"]
    assert (kept["frame"], kept["line"], kept["bytes_per_step"]) == ("remember", line_of("remember"), MIB)
    assert kept["what"] == "held" and kept["count"] >= ended_in - 3
    assert [holder["path"] for holder in kept["holders"]] == ["history[...]"]
    variable = kept["holders"][0]["variable"]
    assert variable.startswith("local variable of test_a_leak_of_") and "_end(), test_watch.py:" in variable
    # It is the workspace of a backward that no longer fits, asked for by autograd's thread, which runs no Python.
    assert found["out_of_memory"]["asked_bytes"] == (WORKSPACE or MIB)
    text = found["text"]
    assert "In-use memory grows by 1.00 MiB a step" in text and "held by history[...]" in text
    assert sum(group["bytes"] for group in found["in_use"]) == sum(found["by_kind"].values())
    assert len(explain_snapshot(load_snapshot(tmp_path / "memory_snapshot.pkl")).parts[0].failures) == 1
    # It was told long before, when the run had hardly begun, with the step in which it would end.
    assert [event["what"] for event in found["events"]] == [
        "memory grows from step to step", "out of memory",
    ]  # fmt: skip


@runs_elsewhere
def test_where_nothing_is_held_nothing_is_named(tmp_path: Path) -> None:
    """A full ring buffer, a batch that is drawn anew every tenth step, and a loss that is kept until the next one."""
    ring: list[Tensor] = []

    def inside(step: int) -> None:
        ring.append(torch.empty(1 << 10, device=DEVICE))
        del ring[:-4]

    found = watch_steps(140, inside, tmp_path)
    assert found["kept"] == []
    assert found["findings"]["growth"] is None
    assert set(found["by_kind"]) <= {"parameter", "gradient", "optimizer state", "input", "held", "activation"}


@runs_elsewhere
def test_a_loss_that_has_been_through_backward_keeps_itself_alone(tmp_path: Path) -> None:
    """The classic: losses are added up with their graphs; 512 bytes a step: real, and too little for a word."""
    model, optimizer = parts()
    losses: list[Tensor] = []
    with watch_training(model, optimizer, save_dir=tmp_path, screen="none") as watch:
        for _ in range(140):
            losses.append(train_step(model, optimizer, rows=256))
            watch.step()
    assert report(tmp_path)["kept"] == []


@runs_elsewhere
def test_activations_of_kept_graphs_are_named_by_the_tensor_that_has_the_graph(tmp_path: Path) -> None:
    """Outputs are kept with their graphs, which backward never frees: activations of all steps stay."""
    model, optimizer = parts()
    outputs: list[Tensor] = []
    with watch_training(model, optimizer, save_dir=tmp_path, screen="none") as watch:
        for _ in range(80):
            train_step(model, optimizer)
            outputs.append(model(torch.randn(256, 16, device=DEVICE)).sum())
            watch.step()
    found = report(tmp_path)
    assert found["findings"]["growth"] is not None
    (kept, *_) = found["kept"]
    assert kept["what"] == "activation"
    (holder, *_) = kept["holders"]
    assert holder["path"] == "outputs[...] -> graph of the tensor"
    assert holder["graph_file"].endswith("test_watch.py")
    assert holder["graph_line"] > line_of("test_activations_of_kept_graphs_are_named_by_the_tensor_that_has_the_graph")


@runs_elsewhere
def test_a_failure_that_the_program_catches_is_told_when_its_step_ends(tmp_path: Path) -> None:
    """It goes on with less. The history has what was in use when it failed."""
    leave_bytes(0, 64 * MIB)

    def inside(step: int) -> None:
        if step == 3:
            with suppress(torch.OutOfMemoryError):
                torch.empty(100 * MIB, dtype=torch.uint8, device=DEVICE)

    found = watch_steps(6, inside, tmp_path)
    assert [event["what"] for event in found["events"]] == [
        "out of memory, and the program went on", "asked for", "the end of the run",
    ]  # fmt: skip
    assert found["events"][0]["step"] == 4


def test_a_request_that_cudnn_tries_again_with_less_is_no_failure(elsewhere: Elsewhere) -> None:
    num_refused, names, found = elsewhere(tried_again)
    if not num_refused:
        pytest.skip("no cuDNN here that could be asked for workspaces")
    assert names == []
    events = [(event["what"], event["step"]) for event in found["events"]]
    assert events == [("out of memory, and the program went on", 5), ("the end of the run", 5)]


@pytest.mark.parametrize("where", by_default(["forward", "optimizer"], {"optimizer"}))
@runs_elsewhere
def test_kinds_are_right_without_a_profiler(where: str, tmp_path: Path) -> None:
    """It runs out in the middle of a step; addresses tell the kind of each block."""
    leave_bytes(0, 64 * MIB)
    model, optimizer = parts()

    def ask(now: str) -> None:
        if now == where and step == 3:
            torch.empty(100 * MIB, dtype=torch.uint8, device=DEVICE)

    optimizer.register_step_pre_hook(lambda *_: ask("optimizer"))
    with suppress(torch.OutOfMemoryError), watch_training(model, optimizer, save_dir=tmp_path, screen="none") as watch:
        for step in range(6):  # noqa: B007 - `ask` reads it
            optimizer.zero_grad()
            output = model(torch.randn(512, 16, device=DEVICE))
            ask("forward")
            output.pow(2).mean().backward()
            del output
            optimizer.step()
            watch.step()
    found = report(tmp_path)
    kinds, parameter_bytes = found["by_kind"], sum(one.numel() * 4 for one in model.parameters())
    assert kinds["parameter"] == parameter_bytes
    # Two states a parameter, and its step number in 4 bytes on the host.
    assert kinds["optimizer state"] == 2 * parameter_bytes
    assert "not known" not in kinds
    if where == "optimizer":
        assert kinds["gradient"] == parameter_bytes
    else:  # zero_grad has let go of the gradients; what the graph of the output keeps is there
        assert "gradient" not in kinds
        assert kinds["activation"] >= 2 * 512 * 256 * 4
        assert kinds["input"] == 512 * 16 * 4
    assert found["out_of_memory"]["asked_bytes"] == 100 * MIB


@runs_elsewhere
def test_the_history_is_off_when_it_is_over(tmp_path: Path) -> None:
    model, optimizer = parts()
    with TrainingWatch(model, optimizer, save_dir=tmp_path, screen="none") as watch:
        train_step(model, optimizer)
        watch.step()
        assert allocator_history_enabled(torch.device(DEVICE))
    assert not allocator_history_enabled(torch.device(DEVICE))


@runs_elsewhere
def test_the_ring_has_a_bound(tmp_path: Path) -> None:
    model, optimizer = parts()
    with TrainingWatch(model, optimizer, save_dir=tmp_path, screen="none", max_entries=1000) as watch:
        for _ in range(50):
            train_step(model, optimizer)
            watch.step()
        watch.write()
        (state, *_) = load_snapshot(tmp_path / "memory_snapshot.pkl").devices
    assert (watch.num_steps_done, len(state.trace)) == (50, 1000)
