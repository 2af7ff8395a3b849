"""A user's own model, by import path: found, built and made into something that can be trained step by step.

    --model torchvision.models:resnet50 --input 3x224x224
    --model path/to/file.py:factory --model-arg width=256

A factory is a class or function. It returns a module, a pair of module and optimizer, or a workload. If it has
parameters named `device`, `batch_size` or `seed`, the command line's are handed to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn

from tracer.errors import UserModelError, WrongValueError
from tracer.units import some
from tracer.workloads.factory import FACTORY_HINT, call_factory, defined_at, load_factory, parse_arguments
from tracer.workloads.module_steps import ModuleWorkload, checkpoint_blocks, gradient_scaler, loss_of
from tracer.workloads.random_inputs import HINT, InputSpec, parse_input, random_batches
from tracer.workloads.step_options import DEFAULTS, StepOptions
from tracer.workloads.workload import all_tensors, give_memory, is_on_meta

_PARTS_OF_A_WORKLOAD = ["model", "optimizer", "device", "next_batch", "forward", "backward", "optimizer_step", "copy"]


def build_user_workload(
    name_of_factory: str,
    *,
    device: torch.device | str,
    model_args: Sequence[str] = (),
    options: StepOptions = DEFAULTS,
    device_named: bool = False,
    without_memory: bool = False,
) -> Any:
    """Find a factory, call it, and make what it returns into a workload.

    Args:
        name_of_factory: `package.module:factory` or `path/to/file.py:factory`.
        model_args: Arguments of the factory as `key=value`; values are Python literals, or else strings.
        device_named: Whether the device was asked for, and must be the one of a workload that brings its own.
    """
    device = torch.device(device)
    factory = load_factory(name_of_factory)
    offered = {"device": device, "batch_size": options.batch_size, "seed": options.seed}
    built = call_factory(name_of_factory, factory, parse_arguments("--model-arg", model_args), offered)
    return as_workload(
        built,
        device=device,
        options=options,
        source=factory,
        device_named=device_named,
        without_memory=without_memory,
    )


# ---- making a workload of what it returned ---------------------------------------------------------------------------


def as_workload(
    built: Any,
    *,
    device: torch.device,
    options: StepOptions = DEFAULTS,
    source: Any = None,
    device_named: bool = False,
    without_memory: bool = False,
) -> Any:
    """Whatever a factory may return, as a workload.

    Args:
        device_named: Whether the device was asked for, and must be the one of a workload that brings its own.
    """
    if isinstance(built, nn.Module):
        return _module_workload(built, None, device, options, without_memory)
    if isinstance(built, tuple) and built and isinstance(built[0], nn.Module):
        match built[1:]:
            case (torch.optim.Optimizer() as its_optimizer,):
                return _module_workload(built[0], its_optimizer, device, options, without_memory)
    if all(hasattr(built, part) for part in _PARTS_OF_A_WORKLOAD):
        if names := options.given():
            raise UserModelError(
                f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no meaning for a workload, which makes its "
                "own step.",
                hint="Leave it out, or return a plain module.",
            )
        if device_named and (built.device.type, built.device.index or 0) != (device.type, device.index or 0):
            raise UserModelError(
                f"The model is on {built.device}, and --device says {device}.",
                hint="Give the factory a parameter `device` to be told, or leave --device out.",
            )
        return built
    if isinstance(built, type) and issubclass(built, nn.Module):
        raise UserModelError(
            f"The factory{defined_at(source)} returned the class {built.__name__}.",
            hint="Name the class itself as the factory, or return a module.",
        )
    description = (
        f"({', '.join(type(part).__name__ for part in built)})" if isinstance(built, tuple) else type(built).__name__
    )
    raise UserModelError(f"The factory{defined_at(source)} returned {description}.", hint=FACTORY_HINT)


def _module_workload(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    device: torch.device,
    options: StepOptions,
    without_memory: bool,
) -> ModuleWorkload:
    if optimizer is not None and options.optimizer != DEFAULTS.optimizer:
        raise UserModelError("The factory brings an optimizer, and --optimizer names another.", hint="Leave one out.")
    options.check_inference()
    if optimizer is not None and not options.inference:
        own = {id(parameter) for parameter in model.parameters()}
        updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if own and not own & updated:
            raise UserModelError(
                f"The factory's {type(optimizer).__name__} updates none of the {some(len(own), 'parameter')} of "
                f"{type(model).__name__}.",
                hint="Make it of `model.parameters()` of the model that is returned.",
            )
    inputs = [parse_input(text) for text in options.inputs]
    _check_inputs(model, inputs)
    if not (without_memory and is_on_meta(model)):
        if any(tensor.is_meta for tensor in all_tensors(model)):
            raise UserModelError(
                "The model has parameters on the meta device, which hold no numbers.",
                hint="Build it outside `torch.device('meta')`.",
            )
        model = model.to(device)
    elif device.type != "cpu":
        give_memory(model, device)
    model.train(not options.inference)
    if options.checkpoint:
        checkpoint_blocks(model)
    if options.inference:
        optimizer = None
    elif optimizer is None:
        optimizer = _optimizer(model, options.optimizer)
    return ModuleWorkload(
        model=model,
        optimizer=optimizer,
        next_batch=random_batches(inputs, batch_size=options.batch_size, device=device, seed=options.seed),
        device=device,
        loss=loss_of(options.loss),
        amp=options.amp,
        inference=options.inference,
        scaler=None if options.inference else gradient_scaler(options.amp, device),
    )


def _check_inputs(model: nn.Module, inputs: Sequence[InputSpec]) -> None:
    forward = type(model).forward
    where = f"{type(model).__name__}.forward{defined_at(forward)}"
    positional = [spec for spec in inputs if spec.name is None]
    keywords = {spec.name: spec for spec in inputs if spec.name is not None}
    if len(positional) + len(keywords) < len(inputs):
        raise WrongValueError("Two --input options have the same name.", hint=HINT)
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*positional, **keywords)
    except TypeError as error:
        if needed := _not_given(signature, len(positional), keywords):
            names = " and ".join(f"`{name}`" for name in needed)
            raise UserModelError(
                f"{where} needs {names}: add --input for {'it' if len(needed) == 1 else 'each'}.",
                hint=f"For an image --input 3x224x224, for token ids --input {needed[0]}=128:int64:0-50257: the shape "
                "of one sample, without the batch, then dtype and range of integers.",
            ) from None
        options = some(len(inputs), "--input option")
        raise UserModelError(f"{where} does not fit {options}: {error}.", hint=HINT) from None


def _not_given(signature: inspect.Signature, num_positional: int, keywords: Collection[str]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [parameter for parameter in signature.parameters.values() if parameter.kind in kinds]
    keyword = [
        parameter for parameter in signature.parameters.values() if parameter.kind == inspect.Parameter.KEYWORD_ONLY
    ]
    rest = [*positional[num_positional:], *keyword]
    return [
        parameter.name
        for parameter in rest
        if parameter.default is inspect.Parameter.empty and parameter.name not in keywords
    ]


def _optimizer(model: nn.Module, text: str) -> torch.optim.Optimizer | None:
    """`adamw`, or with arguments: `sgd:lr=0.1,momentum=0.9`."""
    name, _, arguments = text.partition(":")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if name.lower() == "none" or not parameters:
        return None
    kinds = {
        key.lower(): kind
        for key, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    if name.lower() not in kinds:
        raise WrongValueError(f"torch.optim has no {name}.", hint=f"Use none, {', '.join(sorted(kinds))}.")
    if inspect.signature(kinds[name.lower()].step).parameters["closure"].default is inspect.Parameter.empty:
        raise WrongValueError(
            f"{kinds[name.lower()].__name__} wants a closure, which evaluates the loss.",
            hint="Write the loop in a script, and profile that: `run train.py`.",
        )
    values = parse_arguments("--optimizer", [part for part in arguments.split(",") if part])
    try:
        return kinds[name.lower()](parameters, **values)
    except (TypeError, ValueError) as error:
        raise WrongValueError(f"{text} cannot be made: {error}.", hint="--optimizer sgd:lr=0.1,momentum=0.9") from None
