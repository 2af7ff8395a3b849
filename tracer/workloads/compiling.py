"""A workload whose model torch.compile compiles, and a stretch of a program in which nothing is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from tracer.errors import UserModelError, first_line
from tracer.workloads.factory import parse_arguments
from tracer.workloads.module_steps import ModuleWorkload, SupervisedWorkload

__tracebackhide__ = True  # what raises here is to be looked for in the model


def compiled(workload: Any, arguments: Sequence[str]) -> ModuleWorkload | SupervisedWorkload:
    """The same workload with its model compiled.

    Args:
        arguments: Arguments of `torch.compile`, as `key=value`: `mode=reduce-overhead`, `dynamic=True`.
    """
    if not isinstance(workload, ModuleWorkload | SupervisedWorkload):
        raise UserModelError(
            "--compile has no meaning for a step function or a workload, which does all of a step itself.",
            hint="Call torch.compile in the factory.",
        )
    options = parse_arguments("--compile-arg", arguments)
    try:
        wrapped: Any = torch.compile(workload.model, **options)
    except Exception as error:
        raise UserModelError(
            f"torch.compile does not take {' '.join(arguments) or 'the model'}: {first_line(error)}.",
            hint="--compile-arg mode=reduce-overhead, --compile-arg fullgraph=True",
        ) from error
    return replace(workload, model=wrapped)


def without_compiling() -> AbstractContextManager[Any]:
    """Run compiled functions as they were written, until the block ends."""
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
