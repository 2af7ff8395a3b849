"""Changes of an unchanged script that need no hand in it: they are made from outside, see `applied.py`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tracer.changes.eight_bit_packages import NOT_INSTALLED, PACKAGES, installed_packages
from tracer.changes.recommendation import Group
from tracer.errors import UsageError

ALLOCATOR_SETTINGS = "PYTORCH_CUDA_ALLOC_CONF"


@dataclass(frozen=True, slots=True)
class ScriptChange:
    """A change that can be made to an unchanged script."""

    name: str  # Name in `--apply`
    group: Group  # What it gives up
    words: str  # What it does, for people
    settings: str = ""  # Allocator settings, if the change is these and nothing else
    is_for_jobs: bool = False  # Whether it is nothing to a script of one process
    against: tuple[str, ...] = ()  # Names of causes of a full memory that it removes, see `analysis/snapshots/causes`


EXPANDABLE = ScriptChange(
    "expandable-segments",
    Group.MEMORY,
    "segments grow, so that less is reserved and unused",
    "expandable_segments:True",
    against=("fragmentation",),
)
FUSED = ScriptChange(
    "fused-optimizer",
    Group.MEMORY,
    "the optimizer's step makes no copies of the parameters' size",
    against=("optimizer temporaries",),
)
FREE_GRADIENTS = ScriptChange(
    "free-gradients",
    Group.MEMORY,
    "gradients are freed right after the optimizer's step; nothing may read them later",
    against=("gradients freed late",),
)
CHUNKED_LOSS = ScriptChange(
    "chunked-loss",
    Group.MEMORY,
    "a loss over classes is computed in chunks; a model of Hugging Face returns no logits in training",
    against=("logits",),
)
SPARSE_GRADIENTS = ScriptChange(
    "sparse-gradients",
    Group.MEMORY,
    "gradients of large embeddings have the rows alone that were looked up, where the optimizer takes them",
)
COMPILE = ScriptChange(
    "compile",
    Group.MEMORY,
    "repeated blocks are compiled by torch.compile, each by itself; the first steps take longer",
)
BUCKET_VIEWS = ScriptChange(
    "bucket-views",
    Group.MEMORY,
    "gradients are views of the buckets that DistributedDataParallel sends, not copies of them",
    is_for_jobs=True,
    against=("gradients beside buckets",),
)
CHECKPOINT = ScriptChange(
    "checkpoint",
    Group.COMPUTE,
    "repeated blocks compute their activations again in backward",
    against=("repeated parts", "largest line", "attention matrix"),
)
SHARD = ScriptChange(
    "shard",
    Group.COMPUTE,
    "FSDP2 in the place of DistributedDataParallel: each GPU has a part of weights, gradients and optimizer state",
    is_for_jobs=True,
)
STATE_ON_HOST = ScriptChange(
    "state-on-host",
    Group.COMPUTE,
    "optimizer state is on the device only during the optimizer's steps, a part at a time",
)
FROZEN_ON_HOST = ScriptChange(
    "frozen-on-host", Group.COMPUTE, "weights of blocks that are not trained are on the device only while they are used"
)
SAVED_ON_HOST = ScriptChange(
    "saved-on-host", Group.COMPUTE, "what forward saves for backward is copied to the host and back"
)
BF16 = ScriptChange("bf16", Group.ARITHMETIC, "the model runs under autocast in bfloat16")
BF16_STATE = ScriptChange(
    "bf16-state",
    Group.ARITHMETIC,
    "optimizer state is bfloat16 between steps, rounded at random so that small changes are not lost",
)
STATE_IN_8_BITS = ScriptChange(
    "8-bit-state",
    Group.ARITHMETIC,
    "Adam's state is in 8 bits, by an optimizer of bitsandbytes or torchao, whichever is installed",
)
BF16_WEIGHTS = ScriptChange(
    "bf16-weights",
    Group.ARITHMETIC,
    "weights, gradients and optimizer state are bfloat16; small updates are lost",
)
SCRIPT_CHANGES = (
    EXPANDABLE,
    FUSED,
    FREE_GRADIENTS,
    CHUNKED_LOSS,
    SPARSE_GRADIENTS,
    BUCKET_VIEWS,
    CHECKPOINT,
    SHARD,
    STATE_ON_HOST,
    FROZEN_ON_HOST,
    SAVED_ON_HOST,
    BF16,
    BF16_STATE,
    STATE_IN_8_BITS,
    BF16_WEIGHTS,
)
"""What `fit` tries one after the other, and `fit --each` alone."""
ALL_CHANGES = (COMPILE, *SCRIPT_CHANGES)
"""Compiling as well, which takes longer than all other trials: `fit --search` tries it."""


def changes_against(cause: str) -> tuple[str, ...]:
    """Names of the changes that remove a cause of a full memory."""
    return tuple(change.name for change in ALL_CHANGES if cause in change.against)


def changes_of(*, is_job: bool) -> tuple[ScriptChange, ...]:
    """All changes that can be something to a job, or to a script of one process."""
    return tuple(change for change in SCRIPT_CHANGES if is_job or not change.is_for_jobs)


def changes_to_apply(*, is_job: bool) -> tuple[ScriptChange, ...]:
    """Those of them for which all is installed; the others can only be estimated."""
    return tuple(change for change in changes_of(is_job=is_job) if not _lacks_library(change))


def _lacks_library(change: ScriptChange) -> bool:
    return change is STATE_IN_8_BITS and not installed_packages()


def check_installed(changes: Sequence[ScriptChange]) -> None:
    """Make sure that what changes need is installed.

    Raises:
        UsageError: It is not.
    """
    if any(_lacks_library(change) for change in changes):
        raise UsageError(
            f"{STATE_IN_8_BITS.name} cannot be made: {NOT_INSTALLED}.",
            hint=f"Install {PACKAGES[0]} or {PACKAGES[1]}, or apply {BF16_STATE.name}.",
        )


def script_changes(text: str) -> tuple[ScriptChange, ...]:
    """Changes by name, ordered by what they give up.

    Args:
        text: Names separated by commas, none for an empty text.

    Raises:
        UsageError: A name is not known.
    """
    names = {name.strip() for name in text.split(",") if name.strip()}
    if unknown := names - {change.name for change in ALL_CHANGES}:
        known = ", ".join(change.name for change in ALL_CHANGES)
        raise UsageError(f"There is no change {min(unknown)}.", hint=f"There are {known}.")
    return tuple(change for change in ALL_CHANGES if change.name in names)


def allocator_variables(changes: Sequence[ScriptChange]) -> dict[str, str]:
    """The environment variable with settings of the allocator, which CUDA reads when it begins; none without any."""
    there = [setting for setting in os.environ.get(ALLOCATOR_SETTINGS, "").split(",") if setting]
    wanted = [change.settings for change in changes if change.settings and change.settings not in there]
    return {ALLOCATOR_SETTINGS: ",".join([*there, *wanted])} if wanted else {}
