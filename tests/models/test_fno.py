"""The FNO against what `neuraloperator` computed once, against plain sums, and against its own promises."""

import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile

from models.fno import FNO
from models.fno_layers import SpectralConv
from models.fno_workload import relative_l2_loss
from tests.models.fno_memory import saved_bytes_closed_form
from tests.models.make_golden import CASES, CHANNELS, PATH, run, weights
from tests.models.neuralop_weights import load_neuralop_state_dict

GOLDEN = json.loads(PATH.read_text())
SMALL: dict[str, Any] = {"in_channels": 3, "out_channels": 2, "hidden_channels": 8, "n_layers": 2}


@pytest.fixture(autouse=True)
def seeded(one_thread):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        yield


def golden_model(case, **options):
    model = FNO(**CHANNELS, **case["options"], **options)
    load_neuralop_state_dict(model, weights(case["shapes"], case["complex"]))
    return model


# ---- what neuraloperator computed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_output_and_gradient_are_neuraloperators(name):
    case = GOLDEN[name]
    assert (case["size"], case["options"]) == (CASES[name]["size"], CASES[name]["options"])  # the file is up to date
    output, gradient = run(golden_model(case), case["size"])
    for ours, theirs in ((output, case["output"]), (gradient, case["input_gradient"])):
        theirs = torch.tensor(theirs).reshape(ours.shape)
        assert theirs.std() > 0.05 * theirs.abs().max()  # no flat field that anything would match
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * theirs.abs().max().item())


def test_loading_fails_whole_when_a_tensor_is_left_over_or_missing_or_of_another_shape():
    case = GOLDEN["2d"]
    model = FNO(**CHANNELS, **case["options"])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    theirs = weights(case["shapes"], case["complex"])
    bias, weight = "fno_blocks.convs.0.bias", "fno_blocks.convs.0.weight.tensor"
    broken = {
        "lacks tensors that the model has: fno_blocks.convs.0.bias": {k: v for k, v in theirs.items() if k != bias},
        "has tensors that the model lacks: extra": {**theirs, "extra": torch.ones(1)},
        r"is \[5\].* in the state dict and \[4, 1, 1\]": {**theirs, bias: torch.ones(5)},
        r"torch.float32 in the state dict and .* torch.complex64": {**theirs, weight: theirs[weight].real},
    }
    for message, state_dict in broken.items():
        with pytest.raises(ValueError, match=message):
            load_neuralop_state_dict(model, state_dict)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, before[name])
    load_neuralop_state_dict(model, {**theirs, "_metadata": {"not": "a tensor"}})


@pytest.mark.parametrize(("modes", "elements", "num_bytes"), [(16, 2_410_433, 19_078_916), (32, 8_964_033, 71_507_716)])
def test_sizes_of_the_default_model(modes, elements, num_bytes):
    parameters = list(FNO((modes, modes), in_channels=3, out_channels=1, hidden_channels=64).parameters())
    assert len(parameters) == 40
    assert sum(p.numel() for p in parameters) == elements
    assert sum(p.nbytes for p in parameters) == num_bytes


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


@pytest.mark.parametrize(("size", "modes"), [((6,), (4,)), ((4, 6), (4, 6)), ((5, 3), (3, 2)), ((2, 3, 4), (2, 2, 4))])
def test_gradients_of_the_spectral_convolution_are_those_of_finite_differences(size, modes):
    conv = SpectralConv(2, modes)
    x = torch.randn(1, 2, *size, dtype=torch.float64, requires_grad=True)
    weight = conv.weight.detach().to(torch.cdouble).requires_grad_()
    bias = conv.bias.detach().double().requires_grad_()

    def function(x, weight, bias):
        return torch.func.functional_call(conv, {"weight": weight, "bias": bias}, (x,))

    assert torch.autograd.gradcheck(function, (x, weight, bias))


@pytest.mark.parametrize(("coarse", "factor"), [((12, 12), 2), ((9, 11), 3), ((12,), 3), ((8, 8, 8), 2)])
def test_a_finer_grid_sees_the_same_function(coarse, factor):
    """Waves that the coarse grid resolves are filtered the same on a finer grid, at the points that both have."""
    fine = tuple(factor * n for n in coarse)
    conv = SpectralConv(3, (4,) * len(coarse))
    outputs = []
    for size in (coarse, fine):
        angles = torch.meshgrid(*(2 * torch.pi * torch.arange(n) / n for n in size), indexing="ij")
        waves = [sum(torch.cos(k * angle + phase) for angle in angles) for k, phase in ((1, 0.3), (2, 1.0), (0, 0.5))]
        outputs.append(conv(torch.stack(waves)[None]))  # type: ignore[arg-type]
    shared = outputs[1][(..., *(slice(None, None, factor),) * len(coarse))]
    torch.testing.assert_close(outputs[0], shared, rtol=1e-4, atol=1e-5)


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


# Padding by a quarter on each side: 8 x 12 becomes 12 x 18. Both must also run backward.
@pytest.mark.parametrize(("padding", "padded"), [(0.25, [12, 18]), ([0.25, 0], [12, 12])])
def test_domain_padding_is_added_and_taken_away(padding, padded):
    model = FNO((4, 4), **SMALL, domain_padding=padding)
    seen = []
    model.blocks[0].register_forward_hook(lambda module, inputs, output: seen.append(list(output.shape[2:])))
    y = model(torch.randn(1, 3, 8, 12))
    y.sum().backward()
    assert seen == [padded]
    assert y.shape == (1, 2, 8, 12)


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


# ---- bytes saved for backward ----------------------------------------------------------------------------------------


def saved_bytes(model, x, y, loss):
    """Distinct storages that autograd saves, parameters not counted."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved, alive = {}, []

    def pack(tensor):
        alive.append(tensor)  # so that no address is used twice
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss(model(x), y)
    return sum(saved.values())


CLOSED_FORM_CASES: dict[str, tuple[Any, ...]] = {
    "2d": ((3, 1, 8, 4), (16, 16), (8, 8), {}),
    "2d all modes": ((3, 1, 8, 2), (16, 16), (16, 16), {}),
    "2d other widths": ((1, 2, 10, 2), (12, 20), (6, 5), {"channel_mlp_expansion": 1.0, "projection_channel_ratio": 3}),
    "2d one layer": ((1, 1, 6, 1), (16, 16), (4, 4), {"lifting_channel_ratio": 4}),
    "2d no grid": ((1, 1, 6, 3), (16, 16), (4, 4), {"positional_embedding": None}),
    "2d odd": ((2, 1, 6, 2), (15, 17), (7, 7), {}),
    "1d": ((2, 2, 8, 3), (64,), (16,), {}),
    "1d all modes": ((2, 2, 8, 3), (64,), (64,), {}),
    "3d": ((1, 3, 6, 3), (8, 8, 8), (4, 4, 4), {}),
    "3d odd": ((1, 1, 6, 2), (5, 6, 7), (4, 3, 5), {}),
}


@pytest.mark.parametrize("name", CLOSED_FORM_CASES)
def test_saved_bytes_are_those_of_the_closed_form(name):
    counts, size, modes, options = CLOSED_FORM_CASES[name]
    widths: dict[str, Any] = dict(
        zip(("in_channels", "out_channels", "hidden_channels", "n_layers"), counts, strict=True)
    )
    model = FNO(modes, **widths, **options, spectrum="torch_zeros" if name == "2d" else "new_zeros")
    x, y = torch.randn(3, counts[0], *size), torch.randn(3, counts[1], *size)
    settings: dict[str, Any] = dict(batch_size=3, data_size=size, n_modes=modes, **widths, **options)
    for loss, function in {
        "mse": F.mse_loss,
        "relative_l2": relative_l2_loss,
        "none": lambda output, target: output,
    }.items():
        assert saved_bytes(model, x, y, function) == saved_bytes_closed_form(**settings, loss=loss), loss  # type: ignore[arg-type]


def test_closed_form_by_hand():
    # B 8, N 64 * 64, C 64, L 4: A = 8 MiB, H = 4 MiB, T = 8 * 8 * 64 * 16 * 9 B = 0.5625 MiB, one channel 0.125 MiB.
    # Lifting 5 * 0.125 + 2 * 16; blocks 3 * (32 + 8 + 0.5625) + (16 + 8 + 0.5625); projection and loss 8 + 32 + 0.25.
    settings: dict[str, Any] = {"batch_size": 8, "data_size": (64, 64), "hidden_channels": 64}
    settings |= {"in_channels": 3, "out_channels": 1}
    assert saved_bytes_closed_form(n_modes=(16, 16), **settings) == 219.125 * 2**20
    assert saved_bytes_closed_form(n_modes=(32, 32), **settings) == 225.375 * 2**20


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
