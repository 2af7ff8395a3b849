"""Activation checkpointing: some modules keep their input only and compute the rest again in backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tracer.changes.change import BATCH_NORMS, Change, Part, Situation, Stage
from tracer.changes.hooks import Hooks, Reached
from tracer.changes.recommendation import Group, Keeps
from tracer.workloads.module_steps import repeated_blocks

_WORTHWHILE = 0.002
"""Share of the peak below which a part's activations are not worth a line."""
_BATCH_NORM = "Batch norms see every batch twice: their running statistics move twice as fast."
_KEPT = ("mm", "addmm", "bmm", "baddbmm", "convolution")


class Checkpoint(Hooks, makes="checkpoint"):
    """Has repeated blocks compute again; a model that has its own switch for it counts as one."""

    known_after = Reached.START
    note = "the model has no repeated blocks."

    def on_model(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        """Switch it on, or wrap what each block's forward is."""
        if num_models := _switch_on(model):
            self.num_made += num_models
            return
        for block in blocks:
            block.forward = _computed_again(block, block.forward)
        self.num_made += len(blocks)


def _switch_on(module: nn.Module) -> int:
    """Have models of Hugging Face, which know their own blocks, compute them again; how many models there are."""
    if not getattr(module, "supports_gradient_checkpointing", False):
        return sum(_switch_on(child) for child in module.children())
    module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore[operator]
    config: Any = getattr(module, "config", None)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return 1


def _computed_again(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def called(*args: Any, **kwargs: Any) -> Any:
        if block.training and torch.is_grad_enabled():
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        return forward(*args, **kwargs)

    return called


def part_names(model: nn.Module) -> list[str]:
    """Modules that could compute again: repeated blocks, and what else of the model is made of modules."""
    names = {id(module): name for name, module in reversed(list(model.named_modules()))}
    blocks = [names[id(block)] for block in repeated_blocks(model)]
    rest = []
    for name, child in model.named_children():
        holds_block = any(block == name or block.startswith(f"{name}.") for block in blocks)
        if not holds_block and any(True for _ in child.children()):
            rest.append(name)
    return [name for name in (*blocks, *rest) if name]


def candidates(situation: Situation) -> Iterator[Change]:
    """Some of the parts, those first that save most bytes for each operation done again; and all but the last.

    The last part's activations are there again as soon as backward begins, when all others are still there too: what
    is checkpointed of it saves nothing then.
    """
    if _is_checkpointed(situation.model):
        return
    parts = [part for part in situation.parts if part.saved_bytes > _WORTHWHILE * situation.peak_bytes]
    if not parts:
        return
    in_order = sorted(parts, key=lambda part: part.order)
    by_worth = sorted(parts, key=lambda part: -part.saved_bytes / max(part.flops, 1))
    chosen: dict[frozenset[str], Sequence[Part]] = {}
    for share in (0.25, 0.5, 0.75):
        some = by_worth[: round(share * len(parts))]
        chosen.setdefault(frozenset(part.name for part in some), sorted(some, key=lambda part: part.order))
    for early in (in_order[: len(parts) // 3], in_order[: len(parts) // 2]):  # of a U-Net or a ResNet the largest
        chosen.setdefault(frozenset(part.name for part in early), early)
    chosen.setdefault(frozenset(part.name for part in in_order[:-1]), in_order[:-1])
    chosen.setdefault(frozenset(part.name for part in in_order), in_order)
    for names in chosen.values():
        if names:
            yield _checkpointed(situation, [part.name for part in names])
    yield _checkpointed(situation, [part.name for part in in_order[:-1] or in_order], keeps_products=True)


def _is_checkpointed(model: nn.Module) -> bool:
    """Whether the program does so already, by `--checkpoint` or by a switch of the model's own."""
    has_switch = getattr(model, "is_gradient_checkpointing", False) is True
    return has_switch or any(
        isinstance(module.__dict__.get("forward"), partial) and module.__dict__["forward"].func is checkpoint
        for module in model.modules()
    )


def _checkpointed(situation: Situation, names: Sequence[str], *, keeps_products: bool = False) -> Change:
    has_batch_norm = any(
        isinstance(module, BATCH_NORMS) for name in names for module in situation.model.get_submodule(name).modules()
    )
    saved = {part.name: part for part in situation.parts}
    order = sorted(names, key=lambda name: saved[name].order)
    options = "use_reentrant=False"
    lines = ["from functools import partial", "from torch.utils.checkpoint import checkpoint"]
    if keeps_products:
        operators = ", ".join(f"torch.ops.aten.{name}.default" for name in _KEPT)
        lines += [
            "from torch.utils.checkpoint import create_selective_checkpoint_contexts",
            f"kept = [{operators}]",
            "contexts = partial(create_selective_checkpoint_contexts, kept)",
        ]
        options += ", context_fn=contexts"
    lines += [
        f"for name in ({', '.join(map(repr, order))},):",
        "    block = model.get_submodule(name)",
        f"    block.forward = partial(checkpoint, block.forward, {options})",
    ]
    what = "checkpoint all but matrix products of" if keeps_products else "checkpoint"
    return Change(
        name=f"{what} {module_words(order)}",
        family="checkpoint",
        group=Group.COMPUTE,
        keeps=Keeps.BITS,
        lines=tuple(lines),
        stage=Stage.FORWARD,
        cost=_BATCH_NORM if has_batch_norm else "",
    )


def module_words(names: Sequence[str]) -> str:
    """`blocks.0 to blocks.3, projection`: runs of neighbours in one list are shortened."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    words = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs]
    if len(words) > 4:
        return f"{len(names)} modules, {words[0]} ... {words[-1]}"
    return ", ".join(words)


def _follows(before: str, name: str) -> bool:
    (head, _, number), (next_head, _, next_number) = before.rpartition("."), name.rpartition(".")
    is_pair = number.isdigit() and next_number.isdigit()
    return is_pair and head == next_head and int(next_number) == int(number) + 1
