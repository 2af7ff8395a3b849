"""Low-rank adapters: a model's weights stay as they are, and small matrices beside them are trained, through peft."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

from tracer.errors import first_line
from tracer.workloads.user_errors import UserModelError, WrongValueError

_HINT = "--lora 16, or with the layers --lora 16:q_proj,v_proj or --lora 16:all-linear"
ALL = "all-linear"


def with_adapters(model: nn.Module, text: str) -> nn.Module:
    """The model with adapters in it, made as `peft.get_peft_model` makes them.

    Without layers, they are those that peft knows for a model of transformers, else all linear ones but the last.
    Beside weights of 16 bits, adapters have 32, as in peft.

    Args:
        text: `16`, `16:q_proj,v_proj` or `16:all-linear`.
    """
    rank, _, layers = text.partition(":")
    if not rank.isdigit() or int(rank) < 1:
        raise WrongValueError(f"--lora {text} has no rank.", hint=_HINT)
    try:
        peft: Any = import_module("peft")
    except ImportError:
        raise UserModelError("--lora needs peft.", hint="Install it beside torch and run again.") from None
    names = [name for name in layers.split(",") if name]
    try:
        config = peft.LoraConfig(r=int(rank), target_modules=_layers(peft, model, names), task_type=_task(model))
        adapted: nn.Module = peft.get_peft_model(model, config)
    except ValueError as error:
        raise UserModelError(f"peft makes no adapters of --lora {text}: {first_line(error)}.", hint=_HINT) from error
    return adapted


def _layers(peft: Any, model: nn.Module, names: list[str]) -> Any:
    if names:
        return ALL if names == [ALL] else names
    known = getattr(peft.utils, "TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING", {})
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return None if kind in known else _linear_ones(model)


def _linear_ones(model: nn.Module) -> list[str]:
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return names[:-1] or names


def _task(model: nn.Module) -> str | None:
    """Only models that make text have the method that this kind of adapter wraps."""
    return "CAUSAL_LM" if hasattr(model, "prepare_inputs_for_generation") else None
