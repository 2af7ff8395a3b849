"""`fit --try`: values of a script's own options, every combination of them."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence

from tracer.errors import UsageError

MAX_COMBINATIONS = 64
_HINT = 'Write --try "--batch-size 8,4,2", or --try --compile for an option without a value.'


def combinations(texts: Sequence[str]) -> list[tuple[str, ...]]:
    """Arguments to put behind a script's own, in the order in which their values were named.

    Args:
        texts: Each an option and its values; of one without values it is tried without and with it.

    Raises:
        UsageError: One is no option, or there are more than can be tried.
    """
    choices = [_choices(text) for text in texts]
    combined = [tuple(itertools.chain(*parts)) for parts in itertools.product(*choices)]
    if len(combined) > MAX_COMBINATIONS:
        raise UsageError(
            f"These are {len(combined):,} combinations, and each runs the script.",
            hint=f"Name {MAX_COMBINATIONS} or fewer.",
        )
    return combined


def _choices(text: str) -> list[tuple[str, ...]]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--try {text} cannot be read.", hint=_HINT) from error
    if len(words) == 1 and "=" in words[0]:
        words = words[0].split("=", 1)
    if not words or len(words) > 2 or not words[0].startswith("-"):
        raise UsageError(f"--try {text} is no option with its values.", hint=_HINT)
    if len(words) == 1:
        return [(), (words[0],)]
    values = [value.strip() for value in words[1].split(",")]
    if not all(values):
        raise UsageError(f"--try {text} has a value that is empty.", hint=_HINT)
    return [(words[0], value) for value in values]
