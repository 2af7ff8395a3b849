"""What most of a step's time goes to, in words: which part, in which module and phase, and for which operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tracer.analysis.times.findings import TraceTimes
from tracer.analysis.times.work_rows import WorkRow

_WORTH_SAYING_PCT = 5
_MOST_PCT = 50
_ALL_PCT = 90

Weight = Callable[[WorkRow], int]


def cause(times: TraceTimes, *, file_name: Callable[[str], str] = str) -> str:
    """One or two sentences on the largest part of the time."""
    total = times.total
    parts = {
        "the GPU waits for the host to launch work": total.host_wait_ns,
        "communication runs alone, with nothing computed beside it": total.communication_ns,
        "copies and fills run alone": total.copies_ns,
        "the GPU waits though work is launched: for a stream, another rank or the launch": total.launched_wait_ns,
        "the GPU computes": total.compute_ns,
    }
    name, part_ns = max(parts.items(), key=lambda item: item[1])
    is_wait = part_ns == total.host_wait_ns
    weight: Weight = (lambda row: row.host_wait_ns) if is_wait else (lambda row: row.total_ns)
    share = 100 * part_ns / total.wall_ns if total.wall_ns else 0.0
    loading = 100 * total.loading_wait_ns / part_ns if is_wait and part_ns else 0.0
    loads = f", and in {loading:.0f} % of that the host is loading data" if loading >= _WORTH_SAYING_PCT else ""
    return f"{share:.0f} % of the time {name}{loads}.{_where(times.rows, weight, is_wait, file_name)}"


def _where(rows: Sequence[WorkRow], weight: Weight, is_wait: bool, file_name: Callable[[str], str]) -> str:
    """The module that has most of it, and the operator that has the largest part."""
    total = sum(map(weight, rows))
    largest = max(rows, key=weight, default=None)
    if largest is None or not total:
        return ""
    what = "of the waiting" if is_wait else "of the GPU's work"
    module, share = _module_of_most(rows, weight, total)
    inside = f"{share:.0f} % {what} is in {_phase(rows, module)}{module}; the" if module else "The"
    launcher = largest.launcher
    place = f" ({file_name(launcher.file)}:{launcher.line})" if launcher.file else ""
    part = f"largest part, {100 * weight(largest) / total:.0f} %, is {'for ' if is_wait else ''}"
    return f" {inside} {part}{launcher.op or 'work without an operator'}{place}."


def _module_of_most(rows: Iterable[WorkRow], weight: Weight, total: int) -> tuple[str, float]:
    """The innermost module that has more than half with all that is inside it, and its percent; empty for none."""
    sums: dict[str, int] = {}
    for row in rows:
        names = (row.launcher.module or "").split(".")
        for depth in range(1, len(names) + 1):
            path = ".".join(names[:depth])
            sums[path] = sums.get(path, 0) + weight(row)
    sums.pop("", None)
    most = [path for path, value in sums.items() if 100 * value > _MOST_PCT * total]
    if not most:
        return "", 0.0
    # Paths that have more than half lie inside each other.
    innermost = max(most, key=lambda path: path.count("."))
    return innermost, 100 * sums[innermost] / total


def _phase(rows: Iterable[WorkRow], module: str) -> str:
    """`forward of ` or `backward of `, where almost all work of a module is in one of them."""
    inside = [row for row in rows if f"{row.launcher.module}.".startswith(f"{module}.")]
    total = sum(row.total_ns for row in inside)
    sums = {
        "forward of ": sum(row.forward_ns for row in inside),
        "backward of ": sum(row.backward_ns for row in inside),
    }
    return next((phase for phase, value in sums.items() if total and 100 * value >= _ALL_PCT * total), "")
