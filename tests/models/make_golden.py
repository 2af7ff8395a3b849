"""Writes tests/data/fno_golden.json, what `neuraloperator` 2.0.0 computes: python -m tests.models.make_golden.

Weights and inputs are cosines of an index, so no random numbers are involved. The sizes are even on every axis but the
last, where that release is right; its names and shapes are written down too.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch

PATH = Path(__file__).parents[1] / "data" / "fno_golden.json"
CHANNELS: dict[str, Any] = {"in_channels": 2, "out_channels": 2, "hidden_channels": 4}
CASES = {
    "1d": {"size": [10], "options": {"n_modes": [6], "n_layers": 2}},
    "2d": {"size": [6, 5], "options": {"n_modes": [4, 3], "n_layers": 2}},
    "3d": {"size": [4, 2, 3], "options": {"n_modes": [3, 2, 2], "n_layers": 1}},
    "2d more modes than points": {"size": [4, 4], "options": {"n_modes": [7, 8], "n_layers": 1}},
    "2d preactivation": {
        "size": [4, 6],
        "options": {
            "n_modes": [4, 4],
            "n_layers": 2,
            "norm": "group_norm",
            "preactivation": True,
            "stabilizer": "tanh",
            "fno_skip": "soft-gating",
            "channel_mlp_skip": "linear",
            "channel_mlp_expansion": 1.0,
        },
    },
}


def cosines(shape, position):
    """A tensor without chance: cosines along a squared ramp that starts elsewhere for each position."""
    ramp = torch.arange(math.prod(shape), dtype=torch.float64)
    return torch.cos(0.7 * ramp**2 + 1.3 * position).reshape(shape)


def weights(shapes, complex_names):
    """A state dict with these names and shapes; each name's place in the alphabet decides its values."""
    state_dict = {}
    for position, name in enumerate(sorted(shapes)):
        values = 0.9 * cosines(shapes[name], position)
        if name in complex_names:
            values = torch.complex(values, 0.9 * cosines(shapes[name], position + 0.5))
        state_dict[name] = values.to(torch.cfloat if name in complex_names else torch.float32)
    return state_dict


def run(model, size):
    """Output, and the gradient of its sum of squares, for one analytic input of two samples."""
    x = cosines((2, CHANNELS["in_channels"], *size), 0.25).float().requires_grad_()
    y = model(x)
    y.square().sum().backward()
    return y.detach(), x.grad


def golden_case(size, options):
    """One entry of the file."""
    from neuralop.models import FNO

    model = FNO(**CHANNELS, **options)
    tensors = {name: t for name, t in model.state_dict().items() if name != "_metadata"}
    shapes = {name: list(t.shape) for name, t in tensors.items()}
    complex_names = sorted(name for name, t in tensors.items() if t.is_complex())
    model.load_state_dict(weights(shapes, complex_names))
    output, gradient = run(model, size)
    return {
        "size": size,
        "options": options,
        "shapes": shapes,
        "complex": complex_names,
        "output": rounded(output),
        "input_gradient": rounded(gradient),
    }


def rounded(tensor):
    """Flat list with as many digits as single precision has."""
    return [float(f"{value:.7g}") for value in tensor.flatten().tolist()]


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(golden_case(**case))}" for name, case in CASES.items())
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
