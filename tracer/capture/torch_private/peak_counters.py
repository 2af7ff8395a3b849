"""Peaks of CUDA's allocator between two moments, while whoever reads torch's own peak counters finds them as ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import torch

_Peaks = dict[tuple[str, str], int]
"""By name of a counter and pool, such as `allocated_bytes` and `all`; the pool is empty where it has none."""
_PEAK: Final = "peak"
_READERS: Final = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
_RESETTERS: Final = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")


class PeakCounters:
    """Resets the peak counters at moments of its own, which the program does not notice.

    torch has one set of them. From `follow` on, the functions of torch that read them return the larger of the counter
    and its peak before each reset here; a reset by the program is one for both.
    """

    def __init__(self) -> None:
        self._of_program: dict[int, _Peaks] = {}
        self._own: dict[int, _Peaks] = {}
        self._original: dict[str, Callable[..., Any]] = {}

    def follow(self) -> None:
        """Notice resets by the program from now on, also before CUDA begins."""
        if not self._original:
            self._put_around_torchs()

    def reset(self, device: int) -> None:
        """Begin a new stretch for `peak_bytes`."""
        self.follow()
        _raise_to(self._of_program.setdefault(device, {}), self._peaks(device))
        self._own.pop(device, None)
        self._original[_RESETTERS[0]](device)

    def peak_bytes(self, device: int, counter: str) -> int:
        """Return the peak of a counter, such as `allocated_bytes`, since the last `reset`, or since the beginning."""
        if not self._original:
            return int(torch._C._cuda_memoryStats(device)[counter]["all"][_PEAK])
        key = (counter, "all")
        return max(self._peaks(device).get(key, 0), self._own.get(device, {}).get(key, 0))

    def _put_around_torchs(self) -> None:
        names = [name for name in (*_READERS, *_RESETTERS) if hasattr(torch._C, name)]
        self._original = {name: getattr(torch._C, name) for name in names}
        for name, function in self._original.items():
            own = self._read_by_program if name in _READERS else self._reset_by_program
            setattr(torch._C, name, partial(own, function))

    def _peaks(self, device: int) -> _Peaks:
        return {key: counter[_PEAK] for key, counter in _counters(self._original[_READERS[0]](device))}

    def _read_by_program(self, read: Callable[[int], Any], device: int) -> Any:
        stats, before = read(device), self._of_program.get(device, {})
        for key, counter in _counters(stats):
            counter[_PEAK] = max(counter[_PEAK], before.get(key, 0))
        return stats

    def _reset_by_program(self, reset: Callable[[int], Any], device: int) -> Any:
        _raise_to(self._own.setdefault(device, {}), self._peaks(device))
        self._of_program.pop(device, None)
        return reset(device)


def _counters(stats: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], dict[str, int]]]:
    """Yield the counters that have a peak: most are of three pools, some, as `oversize_segments`, of none.

    Those of private pools, which lie deeper, are left as they are.
    """
    for name, values in stats.items():
        pools = values if isinstance(values, Mapping) and _PEAK not in values else {"": values}
        for pool, counter in pools.items():
            if isinstance(counter, Mapping) and _PEAK in counter:
                yield (name, pool), counter  # type: ignore[misc]


def _raise_to(kept: _Peaks, peaks: _Peaks) -> None:
    for key, peak in peaks.items():
        kept[key] = max(peak, kept.get(key, 0))


PEAKS: Final = PeakCounters()
"""Of this process, which has one set of counters."""
