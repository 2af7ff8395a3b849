"""Finds the stacks of one version of a program in another one, where lines moved, frames came and files changed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

Stack = tuple[str, ...]
Key = tuple[str, Stack]


def match_stacks(before: Iterable[Key], after: Iterable[Key]) -> dict[Key, Key]:
    """For each kind and stack of the first side, the same code's stack on the second side.

    Equal ones first. Then those with the same functions in other files. Then those whose inner frames are the same, at
    least half of the shorter one, the longest such part first: an outer frame more or less is no change.

    Args:
        before: Kind, and functions with files in parentheses, innermost first.
        after: Likewise.

    Returns:
        Pairs; what has no counterpart is not in it. No two have the same counterpart.
    """
    lefts, rights = dict.fromkeys(before), dict.fromkeys(after)
    matches = match_functions(lefts, rights)
    taken = set(matches.values())
    rest = [key for key in lefts if key not in matches], [key for key in rights if key not in taken]
    return matches | _by_inner_frames(*rest)


def match_functions(before: Iterable[Key], after: Iterable[Key]) -> dict[Key, Key]:
    """Match stacks that are equal, or that have the same functions in other files; the first pass of `match_stacks`."""
    lefts, rights = dict.fromkeys(before), dict.fromkeys(after)
    matches = {key: key for key in lefts if key in rights}
    rest = [key for key in lefts if key not in matches], [key for key in rights if key not in matches]
    return matches | _by_functions(*rest)


def differing(before: Stack, after: Stack) -> tuple[str, str]:
    """The innermost frame that differs, on both sides; empty where a side has no more.

    Args:
        before: Frames, innermost first.
        after: Likewise, of the second side.
    """
    same = _common(before, after)
    return ("".join(before[same : same + 1]), "".join(after[same : same + 1]))


def _functions(stack: Stack) -> Stack:
    return tuple(frame.split(" (")[0] for frame in stack)


def _by_functions(before: Sequence[Key], after: Sequence[Key]) -> dict[Key, Key]:
    """Pairs of the same kind and functions; where there are several, in their order."""
    of_functions: dict[Hashable, list[Key]] = {}
    for kind, stack in after:
        of_functions.setdefault((kind, _functions(stack)), []).append((kind, stack))
    matches = {}
    for kind, stack in before:
        if candidates := of_functions.get((kind, _functions(stack))):
            matches[kind, stack] = candidates.pop(0)
    return matches


def _by_inner_frames(before: Sequence[Key], after: Sequence[Key]) -> dict[Key, Key]:
    """Pairs with the longest common inner part; each of both sides at most once."""
    of_innermost: dict[Hashable, list[Key]] = {}
    for kind, stack in after:
        of_innermost.setdefault((kind, _functions(stack[:1])), []).append((kind, stack))
    pairs = []
    for kind, stack in before:
        for candidate in of_innermost.get((kind, _functions(stack[:1])), []):
            same = _common(_functions(stack), _functions(candidate[1]))
            if same and 2 * same >= min(len(stack), len(candidate[1])):
                pairs.append((-same, (kind, stack), candidate))
    matched: dict[Key, Key] = {}
    taken: set[Key] = set()
    for _, key, candidate in sorted(pairs, key=lambda pair: pair[0]):
        if key not in matched and candidate not in taken:
            matched[key] = candidate
            taken.add(candidate)
    return matched


def _common(stack: Stack, other: Stack) -> int:
    """How many frames are the same, from the innermost on."""
    same = 0
    for frame, counterpart in zip(stack, other, strict=False):
        if frame != counterpart:
            break
        same += 1
    return same
