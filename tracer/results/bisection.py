"""The first commit, or the first version of a package, with which a script needs more memory."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.analysis.peak_diff import PeakDiff, SavedPeak, diff_peaks


@dataclass(frozen=True, slots=True)
class Bisection:
    """The last good point and the first bad one, with their peaks."""

    point: str  # The word for a point: commit, version, or change
    good: str
    bad: str
    unknown: tuple[str, ...]  # Points between the two at which the script cannot run
    num_measured: int
    num_points: int  # Both ends included
    good_peak: SavedPeak
    bad_peak: SavedPeak | None  # None where memory runs out
    merged: str | None = None  # Range of the commits that the first bad one merged

    @property
    def diff(self) -> PeakDiff | None:
        """The changes at the peak; None where the bad point has no peak."""
        return None if self.bad_peak is None else diff_peaks(self.good_peak, self.bad_peak)
