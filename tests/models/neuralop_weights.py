"""Weights of the `neuraloperator` package's FNO in ours, so that both compute the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from models.fno import FNO
from models.fno_layers import LinearSkip

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def load_neuralop_state_dict(model: FNO, state_dict: Mapping[str, Any]) -> None:
    """Copy the weights of a `neuraloperator` FNO of the same architecture into ours; all of them, or none.

    Args:
        model: Receives the tensors, on whatever device it is.
        state_dict: What `state_dict()` of a `neuraloperator` FNO returns; its extra key `_metadata` is passed over.

    Raises:
        ValueError: A tensor is left over on either side, or a shape or a kind of number differs.
    """
    sources = {name: value for name, value in state_dict.items() if name != "_metadata"}
    targets = {neuralop_name(model, name): tensor for name, tensor in model.state_dict().items()}
    if missing := sorted(targets.keys() - sources.keys()):
        raise ValueError(f"The state dict lacks tensors that the model has: {', '.join(missing)}.")
    if unused := sorted(sources.keys() - targets.keys()):
        raise ValueError(f"The state dict has tensors that the model lacks: {', '.join(unused)}.")
    for name, target in targets.items():
        source = sources[name]
        if source.shape != target.shape or source.is_complex() != target.is_complex():
            theirs, ours = (f"{list(t.shape)} {t.dtype}" for t in (source, target))
            raise ValueError(f"The tensor {name} is {theirs} in the state dict and {ours} in the model.")
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(sources[name])


def neuralop_name(model: FNO, name: str) -> str:
    """Name in a `neuraloperator` state dict of one of our parameters or buffers.

    Raises:
        ValueError: The model has no tensor of that name.

    Source:
        `neuraloperator` 2.0.0, state dicts of its FNO for every kind of skip and norm.
    """
    match name.split("."):
        case ["lifting" | "projection" as mlp, "fc1" | "fc2" as layer, tensor]:
            return f"{mlp}.fcs.{int(layer[-1]) - 1}.{tensor}"
        case ["blocks", i, "mlp", "fc1" | "fc2" as layer, tensor]:
            return f"fno_blocks.channel_mlp.{i}.fcs.{int(layer[-1]) - 1}.{tensor}"
        case ["blocks", i, "spectral", "weight"]:
            return f"fno_blocks.convs.{i}.weight.tensor"
        case ["blocks", i, "spectral", "bias"]:
            return f"fno_blocks.convs.{i}.bias"
        case ["blocks", i, "skip" | "mlp_skip" as skip, tensor]:
            inner = "conv." if isinstance(model.get_submodule(f"blocks.{i}.{skip}"), LinearSkip) else ""
            return f"fno_blocks.{'fno_skips' if skip == 'skip' else 'channel_mlp_skips'}.{i}.{inner}{tensor}"
        case ["blocks", i, "norm1" | "norm2" as norm, tensor]:
            is_batch_norm = isinstance(model.get_submodule(f"blocks.{i}.{norm}"), _BATCH_NORMS)
            inner = "norm." if is_batch_norm else ""
            return f"fno_blocks.norm.{2 * int(i) + int(norm[-1]) - 1}.{inner}{tensor}"
    raise ValueError(f"The model has no tensor named {name}.")
