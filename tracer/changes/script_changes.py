"""Changes of an unchanged script that need no hand in it: they are made from outside, see `applied.py`.

A row is a kind of change by its name, read before torch is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib.metadata import PackageNotFoundError, version

from tracer.errors import UsageError

ALLOCATOR_SETTINGS = "PYTORCH_CUDA_ALLOC_CONF"


class Group(IntEnum):
    """Costs of a change, in the order in which changes are tried."""

    MEMORY = 0
    """Nothing but memory."""
    COMPUTE = 1
    """Time: something is computed again, or copied to the host and back."""
    ARITHMETIC = 2
    """Digits."""

    @property
    def words(self) -> str:
        """A heading over the changes of this group."""
        return ("Changes nothing but memory", "Costs compute or copies", "Changes the arithmetic")[self]


@dataclass(frozen=True, slots=True)
class ScriptChange:
    """A change that can be made to an unchanged script."""

    group: Group  # What it gives up
    words: str  # What it does, for people
    settings: str = ""  # Allocator settings, if the change is these and nothing else
    is_for_jobs: bool = False  # Whether it is nothing to a script of one process
    against: tuple[str, ...] = ()  # Names of causes of a full memory that it removes, see `answers/why`


SCRIPT_CHANGES = {
    "expandable-segments": ScriptChange(
        Group.MEMORY,
        "segments grow, so that less is reserved and unused",
        "expandable_segments:True",
        against=("fragmentation",),
    ),
    "fused-optimizer": ScriptChange(
        Group.MEMORY, "the optimizer's step makes no copies of the parameters' size", against=("optimizer temporaries",)
    ),
    "free-gradients": ScriptChange(
        Group.MEMORY,
        "gradients are freed right after the optimizer's step; nothing may read them later",
        against=("gradients freed late",),
    ),
    "chunked-loss": ScriptChange(
        Group.MEMORY,
        "a loss over classes is computed in chunks; a model of Hugging Face returns no logits in training",
        against=("logits",),
    ),
    "bucket-views": ScriptChange(
        Group.MEMORY,
        "gradients are views of the buckets that DistributedDataParallel sends, not copies of them",
        is_for_jobs=True,
        against=("gradients beside buckets",),
    ),
    "checkpoint": ScriptChange(
        Group.COMPUTE,
        "repeated blocks compute their activations again in backward",
        against=("repeated parts", "largest line", "attention matrix"),
    ),
    "shard": ScriptChange(
        Group.COMPUTE,
        "FSDP2 in the place of DistributedDataParallel: each GPU has a part of weights, gradients and optimizer state",
        is_for_jobs=True,
    ),
    "saved-on-host": ScriptChange(Group.COMPUTE, "what forward saves for backward is copied to the host and back"),
    "bf16": ScriptChange(Group.ARITHMETIC, "the model runs under autocast in bfloat16"),
    "8-bit-state": ScriptChange(
        Group.ARITHMETIC,
        "Adam's state is in 8 bits, by an optimizer of bitsandbytes or torchao, whichever is installed",
        against=("optimizer state",),
    ),
    "bf16-weights": ScriptChange(
        Group.ARITHMETIC, "weights, gradients and optimizer state are bfloat16; small updates are lost"
    ),
}
"""By their names in `--apply`, the change that costs least first."""


def changes_against(cause: str) -> tuple[str, ...]:
    """Names of the changes that remove a cause of a full memory."""
    return tuple(name for name, change in SCRIPT_CHANGES.items() if cause in change.against)


def change_sentences(names: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence for each change: its effect, and its price."""
    changes = [(name, SCRIPT_CHANGES[name]) for name in names]
    groups = [change.group.words[0].lower() + change.group.words[1:] for _, change in changes]
    return tuple(f"{name}: {change.words} ({group})." for (name, change), group in zip(changes, groups, strict=True))


def changes_of(*, is_job: bool) -> tuple[str, ...]:
    """Return the changes that `fit` tries of a job, or of a script of one process: those for which all is installed."""
    there = SCRIPT_CHANGES.items()
    return tuple(name for name, of in there if (is_job or not of.is_for_jobs) and not _lacks_library(name))


def _lacks_library(name: str) -> bool:
    return name == "8-bit-state" and not installed_packages()


def script_changes(text: str) -> tuple[str, ...]:
    """Names of changes, checked, the change that costs least first."""
    names = {name.strip() for name in text.split(",") if name.strip()}
    if unknown := names - SCRIPT_CHANGES.keys():
        raise UsageError(f"There is no change {min(unknown)}.", hint=f"There are {', '.join(SCRIPT_CHANGES)}.")
    if any(_lacks_library(name) for name in names):
        raise UsageError(
            f"8-bit-state cannot be made: {NOT_INSTALLED}.",
            hint=f"Install {PACKAGES[0]} or {PACKAGES[1]}.",
        )
    return tuple(name for name in SCRIPT_CHANGES if name in names)


def allocator_variables(names: Sequence[str]) -> dict[str, str]:
    """The environment variable with settings of the allocator, which CUDA reads when it begins; none without any."""
    there = [setting for setting in os.environ.get(ALLOCATOR_SETTINGS, "").split(",") if setting]
    settings = (SCRIPT_CHANGES[name].settings for name in names)
    wanted = [setting for setting in settings if setting and setting not in there]
    return {ALLOCATOR_SETTINGS: ",".join([*there, *wanted])} if wanted else {}


PACKAGES = ("bitsandbytes", "torchao")
"""In the order in which they are taken: bitsandbytes compiles nothing."""
NOT_INSTALLED = "neither bitsandbytes nor torchao is installed"


def installed_version(package: str) -> str:
    """Version of a package, or nothing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def installed_packages() -> tuple[str, ...]:
    """Return the packages of 8-bit optimizers that are installed."""
    return tuple(package for package in PACKAGES if installed_version(package))
