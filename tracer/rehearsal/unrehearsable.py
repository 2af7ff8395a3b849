"""Why a step cannot be rehearsed, in a sentence and a hint."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import nn

from tracer.capture.sources.source_files import error_line
from tracer.errors import RehearsalError, TracerError, error_words
from tracer.units import format_bytes

# By what torch says: what is wrong, and what to do. The name of an operator stands in the place of {}.
_REASONS: tuple[tuple[str, str, str], ...] = (
    (
        r"DynamicOutputShapeException",
        "how large the result of {} is depends on numbers, and a rehearsal has none",
        "--engine null-gpu runs it; else rehearse with a part that has fixed shapes in its place.",
    ),
    (
        r"DataDependentOutputException",
        "what {} returns depends on numbers, and a rehearsal has none",
        "Rehearse with a part that does not read values in its place.",
    ),
    (
        r"UnsupportedOperatorException|no fake impl|does not have a fake|without a fake|NotImplementedError.*Meta",
        "{} has no fake kernel, which would say what shape it returns",
        "Register one with torch.library.register_fake.",
    ),
    (
        r"numpy\(\) is not supported|data pointer|Cannot access data|data_ptr",
        "it hands a tensor's memory to code outside torch, and in a rehearsal there is none",
        "Leave that part out, or profile a real step.",
    ),
    (
        r"incompatible tensor type",
        "it assigns to .data of a tensor that a rehearsal does not know",
        "Make the tensor in the step, or let the factory return the model that it belongs to.",
    ),
    (
        r"\d+ active drivers",
        "it launches a Triton kernel, and there is no GPU to compile it for",
        "--engine null-gpu compiles and counts it; else put torch's own operators in its place.",
    ),
)
_NO_NUMBERS = "A rehearsal has shapes and no numbers: does the step run as it is, or with --engine null-gpu?"
_SHARDING_MODULES = ("DistributedDataParallel", "FullyShardedDataParallel")
_OPERATOR = re.compile(r"\b(?:aten|prims?|torchvision|quantized|[a-z_]\w*)(?:::|\.)[\w:.]+")


def refuse_jobs(modules: Iterable[nn.Module]) -> None:
    """A model that other processes have a part in allocates buffers outside of operators, where nobody rehearses it."""
    for module in (inner for model in modules for inner in model.modules()):
        names = [type(module).__name__, *(type(parameter).__name__ for parameter in module.parameters(recurse=False))]
        name = next((name for name in names if name in (*_SHARDING_MODULES, "DTensor")), None)
        if name is not None:
            raise RehearsalError(
                f"A model of several processes cannot be rehearsed: it has a {name}",
                "",
                "Predict it on the null GPU, --on 8xh100 train.py, or a rank's model without it.",
                None,
            )


def rehearsal_error(error: Exception, step: int, known_bytes: int) -> TracerError:
    """What a person is told of an exception in a rehearsed step.

    Args:
        step: Its number, from 0.
        known_bytes: What was in use at most until then.
    """
    if isinstance(error, TracerError):
        return error
    text = f"{type(error).__name__} {error}"
    known = f" Until then {format_bytes(known_bytes)} were allocated at most."
    line = error_line(error)
    for pattern, reason, hint in _REASONS:
        if re.search(pattern, text, re.DOTALL):
            return RehearsalError(
                f"Step {step + 1} cannot be rehearsed: {reason.format(_operator(error))}", known, hint, line
            )
    return RehearsalError(f"Step {step + 1} raised {error_words(error).rstrip('.')}", known, _NO_NUMBERS, line)


def _operator(error: Exception) -> str:
    func = getattr(error, "func", None) or (error.args[0] if error.args else "")
    match = _OPERATOR.search(str(func))
    return match[0].removesuffix(".default") if match else "an operator"
