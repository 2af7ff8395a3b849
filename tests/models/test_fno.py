"""The FNO against plain sums and against its own promises; test_fno_oracle.py has `neuraloperator` beside it."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from models.fno import FNO
from models.fno_layers import SpectralConv

SMALL: dict[str, Any] = {"in_channels": 3, "out_channels": 2, "hidden_channels": 8, "n_layers": 2}


@pytest.fixture(autouse=True)
def seeded(one_thread):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        yield


# ---- the spectral convolution against plain sums ---------------------------------------------------------------------


def spectral_conv_by_sums(x, weight, bias, modes):
    """Every frequency and every point in a loop, in double precision. x [B, C, N...] and weight are numpy arrays."""
    size = x.shape[2:]
    y = np.zeros(x.shape)
    grid = np.stack(np.meshgrid(*(np.arange(n) / n for n in size), indexing="ij"), -1)
    ranges, offsets = [], []
    for n, m in zip(size[:-1], modes[:-1], strict=True):
        k = min(n, m)
        ranges.append(range(-(k // 2), k - k // 2))
        offsets.append((m - k) // 2 + k // 2)
    ranges.append(range(min(size[-1] // 2 + 1, modes[-1] // 2 + 1)))
    offsets.append(0)
    for frequency in itertools.product(*ranges):
        wave = np.exp(2j * np.pi * (grid @ np.array(frequency)))
        spectrum = (x * wave.conj()).reshape(*x.shape[:2], -1).mean(-1)
        at = tuple(f + offset for f, offset in zip(frequency, offsets, strict=True))
        product = spectrum @ weight[(..., *at)]
        alone = frequency[-1] == 0 or 2 * frequency[-1] == size[-1]  # no mirror image on the other side
        y += (1 if alone else 2) * (product[..., *(None,) * len(size)] * wave).real
    return y + bias


SUMS_CASES = [((8,), (5,)), ((7,), (7,)), ((6, 6), (4, 4)), ((5, 7), (3, 4)), ((7, 6), (4, 6)), ((5, 4), (8, 8))]


@pytest.mark.parametrize(("size", "modes"), [*SUMS_CASES, ((3, 5, 4), (2, 3, 4))])
def test_spectral_convolution_by_plain_sums(size, modes):
    conv = SpectralConv(2, modes)
    x = torch.randn(2, 2, *size)
    arrays = (
        t.detach().numpy().astype(np.complex128 if t.is_complex() else float) for t in (x, conv.weight, conv.bias)
    )
    expected = spectral_conv_by_sums(*arrays, modes)  # type: ignore[call-arg]
    np.testing.assert_allclose(conv(x).detach().numpy(), expected, atol=2e-5)


# ---- the whole model -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(16,), (10, 8), (4, 6, 5)])
def test_one_model_takes_grids_of_several_sizes(size):
    model = FNO((4,) * len(size), **SMALL).eval()
    for scale in (1, 2, 1):  # back again: the grid that was kept must not be the wrong one
        bigger = [scale * n for n in size]
        assert model(torch.randn(2, 3, *bigger)).shape == (2, 2, *bigger)


def test_every_module_with_weights_is_called_so_that_a_profiler_sees_it():
    model = FNO((4, 4), **SMALL, norm="group_norm")
    called = set()
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: called.add(name))
    model(torch.randn(2, 3, 8, 8))
    assert {name.rpartition(".")[0] for name, _ in model.named_parameters()} <= called
    assert "blocks.1.spectral" in called


@pytest.mark.parametrize("size", [(8,), (7, 8), (4, 5, 6)])
def test_both_ways_to_allocate_the_spectrum_compute_the_same(size):
    results = []
    for spectrum in ("new_zeros", "torch_zeros"):
        torch.manual_seed(3)
        model = FNO((3,) * len(size), **SMALL, spectrum=spectrum)
        x = torch.randn(2, 3, *size, requires_grad=True)
        y = model(x)
        y.square().sum().backward()
        results.append((y, x.grad))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def activation_bytes(spectrum):
    """What torch itself tags as activation in one step."""
    model = FNO((4, 4), **SMALL, spectrum=spectrum)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True) as prof:
        model(torch.randn(2, 3, 16, 16)).square().sum().backward()
    memory = prof._memory_profile()
    created = [(key, version, size) for _, action, (key, version), size in memory.timeline if action.name == "CREATE"]
    categories = [(memory._categories.get(key, version), size) for key, version, size in created if hasattr(key, "id")]
    return sum(size for category, size in categories if category is not None and category.name == "ACTIVATION")


def test_the_way_to_allocate_decides_what_torch_can_tag():
    """A tensor from torch.zeros has no input, so no category, and what is computed from it has none either.

    On one thread torch computes 1x1 convolutions of few samples by another routine, after which it tags no activations.
    """
    torch.set_num_threads(2)
    assert activation_bytes("new_zeros") > 2 * activation_bytes("torch_zeros") > 0


def test_dropout_acts_in_training_alone():
    model = FNO((4, 4), **SMALL, channel_mlp_dropout=0.5)
    x = torch.randn(1, 3, 8, 8)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_spread_of_the_first_weights():
    conv = SpectralConv(64, (16, 16))
    assert conv.weight.abs().square().mean().sqrt().item() == pytest.approx(0.125, rel=0.02)
    assert conv.bias.square().mean().sqrt().item() == pytest.approx(0.125, rel=0.4)
    assert conv.bias.shape == (64, 1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_channels": 0}, "number of input channels must be at least 1, not 0"),
        ({"out_channels": -1}, "number of output channels must be at least 1, not -1"),
        ({"hidden_channels": 0}, "number of hidden channels must be at least 1"),
        ({"n_layers": 0}, "number of layers must be at least 1"),
        ({"n_modes": (4, 0)}, "number of modes of axis 2 must be at least 1, not 0"),
        ({"n_modes": ()}, "1, 2 or 3 spatial axes, not the 0"),
        ({"n_modes": (2, 2, 2, 2)}, "1, 2 or 3 spatial axes, not the 4"),
        ({"lifting_channel_ratio": 0.1}, "channels inside the lifting must be at least 1, not 0"),
        ({"projection_channel_ratio": 0}, "channels inside the projection must be at least 1"),
        ({"channel_mlp_expansion": 0.01}, "channels inside the channel MLP must be at least 1"),
        ({"channel_mlp_dropout": 1.5}, "probability from 0 to 1, not 1.5"),
        ({"norm": "group_norm", "norm_groups": 3}, "8 hidden channels cannot be divided into 3"),
        ({"norm": "layer_norm"}, "norm must be one of 'group_norm'.*not 'layer_norm'"),
        ({"fno_skip": "none"}, "skip of the spectral convolution must be one of"),
        ({"channel_mlp_skip": "none"}, "skip of the channel MLP must be one of"),
        ({"stabilizer": "relu"}, "stabilizer must be one of 'tanh', None, not 'relu'"),
        ({"spectrum": "zeros"}, "allocate the spectrum must be one of"),
        ({"positional_embedding": "sines"}, "positional embedding must be 'grid' or None"),
        ({"domain_padding": [0.1]}, "domain padding must be 0 or more, one number or 2"),
        ({"domain_padding": -0.1}, "domain padding must be 0 or more"),
    ],
)
def test_arguments_that_make_no_model(options, message):
    with pytest.raises(ValueError, match=message):
        FNO(**{"n_modes": (4, 4), **SMALL, **options})


@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 3, 8, 8, 8), (2, 4, 8, 8)])
def test_a_batch_of_another_shape_is_refused_by_name(shape):
    with pytest.raises(ValueError, match=r"takes a batch \[batch, 3, points, points\], not one of shape"):
        FNO((4, 4), **SMALL)(torch.zeros(shape))


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.needs_values
@pytest.mark.parametrize("size", [(64,), (32, 64), (64, 64), (30, 31), (16, 32, 16)])
def test_a_gpu_computes_the_same(size):
    """At powers of two cuFFT's own `irfftn` reads imaginary parts that a real field does not have."""
    model = FNO((16,) * len(size), **SMALL)
    x = torch.randn(2, 3, *size)
    expected = model(x).detach()
    output = model.cuda()(x.cuda()).detach().cpu()
    assert (output - expected).norm() < 1e-3 * expected.norm()
