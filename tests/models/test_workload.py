"""Training steps: what may be asked for, what a step does and leaves behind, and that a model learns."""

from typing import Any

import pytest
import torch

import models.fno_workload
from models.fno_workload import FnoSettings, build_fno_workload, relative_l2_loss

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {"batch_size": 2, "hidden_channels": 8, "data_size": 8, "n_modes": 4, "n_layers": 2}


def small_fno(device="cpu", **settings):
    return build_fno_workload(FnoSettings(**{**SMALL, **settings}), device=device)


def train(workload, num_steps):
    """Mean loss of a sample in each step."""
    losses = []
    for _ in range(num_steps):
        batch = workload.next_batch()
        loss = workload.forward(batch)
        workload.backward(loss)
        workload.optimizer_step()
        losses.append(loss.item() / len(batch[0]))
    return losses


# ---- settings --------------------------------------------------------------------------------------------------------

IMPOSSIBLE = [
    ({"batch_size": 0}, "batch size must be at least 1, not 0"),
    ({"in_channels": 0}, "number of input channels must be at least 1"),
    ({"out_channels": -3}, "number of output channels must be at least 1, not -3"),
    ({"hidden_channels": 1}, "number of hidden channels must be at least 2, not 1"),
    ({"n_layers": -1}, "number of layers must be at least 1, not -1"),
    ({"data_size": 0}, "data size of axis 1 must be at least 1"),
    ({"data_size": (64, -64)}, "data size of axis 2 must be at least 1, not -64"),
    ({"n_modes": 0}, "number of modes of axis 1 must be at least 1"),
    ({"data_size": 31}, "number of modes of axis 1 is 32, and a data size of 31 allows 31 at most"),
    ({"n_modes": (16, 65)}, "number of modes of axis 2 is 65, and a data size of 64 allows 64 at most"),
    ({"data_size": (64, 64), "n_modes": (8, 8, 8)}, "data size has 2 axes and the number of modes has 3"),
    ({"data_size": (8, 8, 8, 8), "n_modes": 4}, "1, 2 or 3 spatial axes, not 4"),
    ({"data_size": ()}, "1, 2 or 3 spatial axes, not 0"),
    ({"spectrum": "zeros"}, "spectrum must be one of new_zeros, torch_zeros, not zeros"),
    ({"seed": -1}, "seed must be from 0 to .*, not -1"),
    ({"seed": 2**63}, "seed must be from 0 to"),
]


@pytest.mark.parametrize(("settings", "message"), IMPOSSIBLE)
def test_settings_that_cannot_work_are_refused_before_anything_is_built(settings, message, monkeypatch):
    def build(*args, **kwargs):
        raise AssertionError("too late")

    monkeypatch.setattr(models.fno_workload, "FNO", build)
    with pytest.raises(ValueError, match=message):
        build_fno_workload(FnoSettings(**settings), device="cpu")


@pytest.mark.parametrize(
    ("data_size", "n_modes", "size"),
    [(8, 4, (8, 8)), ((8,), 8, (8,)), (8, (4,), (8,)), ((4, 6, 8), 4, (4, 6, 8)), (6, (4, 4, 2), (6, 6, 6))],
)
def test_sizes_decide_the_number_of_axes(data_size, n_modes, size):
    workload = small_fno(data_size=data_size, n_modes=n_modes, in_channels=2)
    x, y = workload.next_batch()
    assert (x.shape, y.shape) == ((2, 2, *size), (2, 1, *size))
    train(workload, 1)


def test_default_is_the_documented_model():
    workload = build_fno_workload(device="cpu")
    assert sum(p.numel() for p in workload.model.parameters()) == 8_964_033
    assert [list(t.shape) for t in workload.next_batch()] == [[8, 3, 64, 64], [8, 1, 64, 64]]
    assert isinstance(workload.optimizer, torch.optim.AdamW)
    assert (workload.optimizer.defaults["lr"], workload.optimizer.defaults["weight_decay"]) == (1e-3, 1e-2)


def test_spectrum_reaches_the_model():
    for spectrum in ("new_zeros", "torch_zeros"):
        model = small_fno(spectrum=spectrum).model
        assert {block.spectral.spectrum for block in model.blocks} == {spectrum}


# ---- a step ----------------------------------------------------------------------------------------------------------


def test_relative_loss_by_hand():
    # Errors (3, 4) on (0, 10) and (0, 1) on (1, 0): 5 / 10 + 1 / 1.
    target = torch.tensor([[[0.0, 10.0]], [[1.0, 0.0]]])
    error = torch.tensor([[[3.0, 4.0]], [[0.0, 1.0]]])
    assert relative_l2_loss(target + error, target).item() == pytest.approx(1.5)


def test_relative_loss_of_a_perfect_output_has_a_finite_gradient():
    target = torch.ones(2, 1, 4, 4)
    output = target.clone().requires_grad_()
    relative_l2_loss(output, target).backward()
    assert torch.equal(output.grad, torch.zeros_like(output))  # type: ignore[arg-type]


# ---- data ------------------------------------------------------------------------------------------------------------


def test_every_step_gets_a_tensor_of_its_own():
    workload = small_fno()
    batches = [workload.next_batch() for _ in range(3)]
    for index in (0, 1):
        tensors = [batch[index] for batch in batches]
        assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)
        assert all(t.untyped_storage().nbytes() == t.nbytes for t in tensors)
        assert not torch.equal(tensors[0], tensors[1])


def test_weights_and_data_follow_from_the_seed_and_nothing_else():
    before = torch.get_rng_state()
    runs = [train(small_fno(seed=seed), 2) for seed in (5, 5, 6)]
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        runs.append(train(small_fno(seed=5), 2))
    assert runs[0] == runs[1] == runs[3] != runs[2]


@pytest.mark.gpu
def test_batches_and_model_reach_a_gpu():
    workload = small_fno("cuda:0")
    assert {t.device for t in (*workload.next_batch(), *workload.model.parameters())} == {torch.device("cuda:0")}


@pytest.mark.gpu
@pytest.mark.needs_values
def test_a_gpu_starts_as_the_cpu():
    on_gpu, on_cpu = (small_fno(device) for device in ("cuda:0", "cpu"))
    on_gpu.next_batch()
    on_cpu.next_batch()
    assert train(on_gpu, 1) == pytest.approx(train(on_cpu, 1), rel=1e-3)
