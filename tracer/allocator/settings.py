"""The allocator's settings, as PYTORCH_CUDA_ALLOC_CONF spells them and with torch's own rules for what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tracer.block_sizes import LARGE_SEGMENT_BYTES, NO_DIVISIONS, NUM_INTERVALS, recorded_divisions
from tracer.errors import SettingsError
from tracer.units import MIB

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Variables of the environment in which torch reads them."""
_HINT = 'Write them as PYTORCH_CUDA_ALLOC_CONF does: "expandable_segments:True,max_split_size_mb:512".'
_MAX_MB = (1 << 44) - 1  # what torch clamps sizes to, so that they fit 64 bits


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """Settings by which the allocator cuts and keeps memory. Sizes are bytes."""

    expandable_segments: bool = False  # Segments grow in place, page by page
    max_split_size: int | None = None  # Blocks of this size and above are not split; None for no limit
    # How much larger than a request an unsplit block may be that serves it.
    max_non_split_rounding_size: int = LARGE_SEGMENT_BYTES
    # Segment for requests between 1 and 10 MiB; page of large expandable segments.
    large_segment_size: int = LARGE_SEGMENT_BYTES
    # Share of the memory limit above which old cached segments are released; 0 for never. It acts only where a memory
    # fraction is set.
    garbage_collection_threshold: float = 0.0
    # Into how many steps each power of two from 1 MiB on is divided; 0 and 1 for 512 bytes.
    roundup_power2_divisions: tuple[int, ...] = NO_DIVISIONS
    per_process_memory_fraction: float = 1.0  # Share of the device that the process may reserve


def parse_settings(text: str) -> AllocatorSettings:
    """Read settings such as `expandable_segments:True,max_split_size_mb:512`; the empty text gives the defaults.

    What torch refuses is refused; so is what torch only guesses, such as `max_split_size_mb:25x` for 25. Settings of
    pinned memory and of locking are checked and have no effect on what is reserved.

    Raises:
        SettingsError: torch would not start with these settings, or not with this allocator.

    Source:
        `c10/core/AllocatorConfig.cpp` and `c10/cuda/CUDAAllocatorConfig.cpp` of torch 2.11 to 2.15.
    """
    pairs = _pairs(text)
    values: dict[str, Any] = {}
    # torch reads this one first, wherever it stands: the limits of two others depend on it.
    for key, value in sorted(pairs, key=lambda pair: pair[0] != "large_segment_size_mb"):
        if key not in _READERS:
            raise SettingsError(f"torch's allocator has no setting {key!r}.", hint=f"It has {', '.join(_SHOWN)}.")
        field, read = _READERS[key]
        value_read = read(key, value, values)
        values |= {field: value_read} if field else {}
    return AllocatorSettings(**{"max_non_split_rounding_size": _large_segment_size(values), **values})


def recorded_settings(recorded: Mapping[str, Any]) -> AllocatorSettings:
    """The settings that a snapshot says it was recorded under; what it does not say is torch's default."""
    try:
        settings = parse_settings(recorded.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    except SettingsError:  # of a torch that knew other settings; the values below were in force all the same
        settings = AllocatorSettings()
    options: dict[str, Any] = {}
    if "expandable_segments" in recorded:
        options["expandable_segments"] = recorded["expandable_segments"]
    if recorded.get("max_split_size", -1) > 0:
        options["max_split_size"] = recorded["max_split_size"]
    for name in ("garbage_collection_threshold", "per_process_memory_fraction"):
        if 0 < recorded.get(name, 0) < 1:
            options[name] = recorded[name]
    if recorded.get("roundup_power2_divisions"):
        table = recorded_divisions(recorded)
        if all(map(_is_division, table)):
            options["roundup_power2_divisions"] = table
    return replace(settings, **options)


def _pairs(text: str) -> list[tuple[str, str]]:
    """The keys and the spelled values; commas between brackets belong to the value."""
    compact = re.sub(r"\s", "", text)
    pairs = []
    for part in re.split(r",(?![^\[]*\])", compact.removesuffix(",")):
        key, colon, value = part.partition(":")
        if part and not (key and colon and value):
            raise SettingsError(f"The setting {part!r} is not a name, a colon and a value.", hint=_HINT)
        if part:
            pairs.append((key, value))
    if compact and not pairs:
        raise SettingsError(f"{text!r} has no setting in it.", hint=_HINT)
    return pairs


Values = Mapping[str, Any]
_NOTHING: Final[Values] = {}
Reader = Callable[[str, str, Values], Any]  # From a key, its spelled value and what was read before to a value


def _large_segment_size(read: Values) -> int:
    size: int = read.get("large_segment_size", LARGE_SEGMENT_BYTES)
    return size


def _whole(key: str, value: str, _: Values = _NOTHING) -> int:
    if not re.fullmatch(r"\+?\d{1,19}", value):
        raise SettingsError(f"{key} is {value}, not a whole number of up to 64 bits.", hint=_HINT)
    return int(value)


def _number(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise SettingsError(f"{key} is {value}, not a number.", hint=_HINT) from None


def _truth(key: str, value: str, _: Values) -> bool:
    if value not in ("True", "False"):
        raise SettingsError(f"{key} is {value}, not True or False.", hint=_HINT)
    return value == "True"


def _large_segment(key: str, value: str, _: Values) -> int:
    megabytes = _whole(key, value)
    if megabytes <= 10:
        raise SettingsError(f"{key} is {megabytes}, and torch takes only more than 10.", hint="The default is 20.")
    return min(megabytes, _MAX_MB) * MIB


def _at_least_a_segment(key: str, value: str, before: Values) -> int:
    megabytes, least = _whole(key, value), _large_segment_size(before) // MIB
    if megabytes < least:
        raise SettingsError(
            f"{key} is {megabytes}, and torch takes only {least} or more.",
            hint="It cannot be below large_segment_size_mb, which is 20 by default.",
        )
    return min(megabytes, _MAX_MB) * MIB


def _threshold(key: str, value: str, _: Values) -> float:
    share = _number(key, value)
    if not 0 < share < 1:
        raise SettingsError(f"{key} is {value}, and torch takes only what lies between 0 and 1.", hint=_HINT)
    return share


def _fraction(key: str, value: str, _: Values) -> float:
    share = _number(key, value)
    if not 0 <= share <= 1:
        raise SettingsError(f"{key} is {value}, and torch takes only 0 to 1.", hint=_HINT)
    return share


def _is_division(number: int) -> bool:
    return number >= 0 and number & (number - 1) == 0


def _divisions(key: str, value: str, before: Values) -> tuple[int, ...]:
    """Parse one number for all sizes, or a list such as `[256:1,512:2,>:4]` by the size in MiB."""
    if not value.startswith("["):
        number = _whole(key, value)
        if not number or not _is_division(number):
            raise SettingsError(f"{key} is {number}, which is no power of two.", hint="Use 1, 2, 4, 8, ...")
        return (number,) * NUM_INTERVALS
    if not value.endswith("]"):
        raise SettingsError(f"{key} has no closing bracket.", hint=_HINT)
    parts = [part for part in value[1:-1].split(",") if part]
    table = list(before.get("roundup_power2_divisions", NO_DIVISIONS))
    return _division_table(key, parts, table)


def _division_table(key: str, parts: list[str], table: list[int]) -> tuple[int, ...]:
    """The first size also stands for all smaller ones, and `>` for all above the last one named."""
    last, is_first = 0, True
    for part in parts:
        size, _, number = part.partition(":")
        divisions = _whole(key, number)
        if not _is_division(divisions):
            raise SettingsError(f"{key} has {divisions} divisions, which is no power of two.", hint="Use 0, 1, 2, ...")
        if size == ">":
            table[last + 1 :] = [divisions] * (NUM_INTERVALS - last - 1)
            continue
        megabytes = _whole(key, size)
        if not megabytes or not _is_division(megabytes):
            raise SettingsError(f"{key} has sizes from {size} MiB on, which is no power of two.", hint="Use 256, 512.")
        last = min(int(math.log2(megabytes)), NUM_INTERVALS - 1)
        if is_first:
            table[:last], is_first = [divisions] * last, False
        table[last] = divisions
    return tuple(table)


def _backend(key: str, value: str, _: Values) -> None:
    if value != "native":
        raise SettingsError(
            f"{key}:{value} is another allocator than the caching allocator of torch.",
            hint="Only the native backend can be replayed.",
        )


def _register_threads(key: str, value: str, _: Values) -> None:
    number = _whole(key, value)
    if not number or not _is_division(number) or number > 128:
        raise SettingsError(f"{key} is {number}, which is no power of two up to 128.", hint=_HINT)


def _positive(key: str, value: str, _: Values) -> None:
    if not _whole(key, value):
        raise SettingsError(f"{key} is 0, and torch takes only more.", hint=_HINT)


def _anything(key: str, value: str, _: Values) -> None:
    """Torch warns of a wrong value and goes on."""


# The field that each sets, and what reads it; those without a field are checked alone.
_READERS: Final[dict[str, tuple[str, Reader]]] = {
    "expandable_segments": ("expandable_segments", _truth),
    "max_split_size_mb": ("max_split_size", _at_least_a_segment),
    "max_non_split_rounding_mb": ("max_non_split_rounding_size", _at_least_a_segment),
    "large_segment_size_mb": ("large_segment_size", _large_segment),
    "garbage_collection_threshold": ("garbage_collection_threshold", _threshold),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "per_process_memory_fraction": ("per_process_memory_fraction", _fraction),
    "backend": ("", _backend),
    "expandable_segments_reserve": ("", _anything),
    "expandable_segments_reserve_by_class": ("", _anything),
    "graph_capture_record_stream_reuse": ("", _truth),
    "pinned_free_catch_all": ("", _truth),
    "pinned_max_cached_size_mb": ("", _whole),
    "pinned_max_round_threshold_mb": ("", _whole),
    "pinned_num_register_threads": ("", _register_threads),
    "pinned_reserve_segment_size_mb": ("", _positive),
    "pinned_use_background_threads": ("", _truth),
    "pinned_use_cuda_host_register": ("", _truth),
    "pinned_use_hip_host_register": ("", _truth),
    "release_lock_on_cudamalloc": ("", _truth),
    "release_lock_on_hipmalloc": ("", _truth),
    "throw_on_cudamalloc_oom": ("", _truth),
}
_SHOWN = list(_READERS)[:7]
