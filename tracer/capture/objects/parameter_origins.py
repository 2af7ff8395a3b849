"""Origins of a model's parameters: the lines that constructed them, and their sizes.

A model that is built inside `ParameterOrigins` tells the whole stack of calls. For one that exists already, and for
what was copied from a module, the source of its classes is searched for the line that assigned the submodule or
parameter.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Hashable, Iterable, Iterator
from functools import cache
from types import FrameType
from typing import Any, Self, cast
from weakref import ref

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils.hooks import RemovableHandle

from tracer.capture.objects.known_storages import Parameter
from tracer.capture.sources.compiled_code import without_wrappers
from tracer.capture.sources.source_files import is_own_code, is_package_code, is_user_code, whole_path
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.torch_private import torch_tensors

_STACKS: dict[int, tuple[ref[Tensor], tuple[SourceLine, ...]]] = {}
"""By `id()`, for as long as the tensor lives."""


class ParameterOrigins:
    """While open, notes the stack of calls at which parameters and buffers are registered: build the model inside."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        self._handles = [
            register_module_parameter_registration_hook(_note),
            register_module_buffer_registration_hook(_note),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()


def _note(module: nn.Module, name: str, tensor: Tensor | None) -> None:
    """Remember who registers a tensor; the first registration of a shared one counts, for there it was made.

    A buffer may be None, as the weight of `nn.CrossEntropyLoss()`.
    """
    number = id(tensor)
    if tensor is not None and number not in _STACKS:
        forget = _STACKS.pop  # the module may be gone before the tensor, when Python ends
        _STACKS[number] = (ref(tensor, lambda _: forget(number, None)), _named_lines(sys._getframe(1)))


def lines_of(model: nn.Module, name: str, tensor: Tensor) -> tuple[SourceLine, ...]:
    """The lines that made a parameter or buffer, innermost first; empty where that is not known."""
    noted = _STACKS.get(id(tensor))
    return noted[1] if noted is not None and noted[1] else tuple(_assignments(model, name))


def own_line(lines: Iterable[SourceLine]) -> SourceLine | None:
    """The innermost line of the user's own code, of a library where there is none of it; None without lines."""
    known = tuple(lines)
    return next((line for line in known if is_user_code(line.file)), known[0] if known else None)


def calling_line() -> SourceLine | None:
    """The line of the user's own code that called this program's, of a library where there is none of it.

    None where this program runs the step itself.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_own_code(frame.f_code.co_filename):
        frame = frame.f_back
    return own_line(_named_lines(frame, up_to_ours=True))


def _named_lines(frame: FrameType | None, *, up_to_ours: bool = False) -> tuple[SourceLine, ...]:
    """Lines of the user and of libraries, innermost first, up to the user's outermost."""
    lines, is_ours_passed, num_to_users = [], False, 0
    while frame is not None and not (is_ours_passed and up_to_ours):
        file = frame.f_code.co_filename
        if is_own_code(file):
            is_ours_passed = True
        elif is_user_code(file) or (is_package_code(file) and not is_ours_passed):
            lines.append(SourceLine(whole_path(file), frame.f_lineno))
            num_to_users = len(lines) if is_user_code(file) else num_to_users
        frame = frame.f_back
    return tuple(lines[:num_to_users] or lines)


def describe_parameters(model: nn.Module, *, prefix: str = "") -> tuple[Parameter, ...]:
    """A model's parameters in its own order, a shared one once."""
    parameters = []
    for name, parameter in model.named_parameters():
        shown, local = without_wrappers(name), torch_tensors.local_part(parameter)
        parameters.append(
            Parameter(
                name=f"{prefix}.{shown}" if prefix else shown,
                size_bytes=int(local.numel() * local.element_size()),
                wants_gradient=parameter.requires_grad,
                module=".".join(part for part in (prefix, shown.rpartition(".")[0]) if part),
                lines=lines_of(model, name, parameter),
            )
        )
    return tuple(parameters)


def _assignments(model: nn.Module, name: str) -> Iterator[SourceLine]:
    """The lines on which classes of the user or a library assign the parts of a dotted name, from the innermost out."""
    owners: list[nn.Module] = [model]
    parts = name.split(".")
    for part in parts[:-1]:
        owners.append(getattr(owners[-1], part))
    for owner, part in zip(reversed(owners), reversed(parts), strict=True):
        file, assigned, definition = _attributes(cast(Hashable, type(owner)))
        if file:
            yield SourceLine(file, assigned.get(part, definition))


@cache
def _attributes(cls: Any) -> tuple[str, dict[str, int], int]:
    """A class's file, the lines of `self.x = ...` in it, the first of each name, and the line of the class.

    Of a class of the user or a library; empty for others.
    """
    try:
        file = inspect.getfile(cls)
        source, first = inspect.getsourcelines(cls)
        tree = ast.parse(textwrap.dedent("".join(source)))
    except (OSError, TypeError, SyntaxError, RecursionError):
        return "", {}, 0
    if not (is_user_code(file) or is_package_code(file)):
        return "", {}, 0
    lines: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for part in (part for target in targets for part in ast.walk(target)):
                if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
                    lines[part.attr] = min(node.lineno + first - 1, lines.get(part.attr, sys.maxsize))
    return whole_path(file), lines, first
