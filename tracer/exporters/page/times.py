"""The time of a device on the page: lanes above memory, its cause in a sentence, steps, launchers and kernels."""

from __future__ import annotations

from tracer.analysis.profiles.source_lines import PlaceInCode
from tracer.analysis.times.cause import cause
from tracer.analysis.times.findings import TraceTimes
from tracer.analysis.times.step_times import StepTimes
from tracer.capture.torch_names import step_words
from tracer.exporters.page.model import Cell, FileCell, PageLane, Section, Table
from tracer.units import ms

_MOST_STEPS, _MOST_ROWS = 50, 100


def time_lanes(times: TraceTimes) -> tuple[PageLane, ...]:
    """A lane for each stream."""
    words = {stream.stream: stream.words for stream in times.streams}
    return tuple(PageLane(f"GPU {times.device}, {words[lane.stream]}", lane) for lane in times.lanes)


def time_sentence(times: TraceTimes) -> str:
    """What most of the time goes to."""
    return f"Time on GPU {times.device}: {cause(times)}"


def time_section(times: TraceTimes) -> Section:
    """Tables of time by step, by launcher and by kernel."""
    return Section(f"Time on GPU {times.device}", (), (_steps(times), _launchers(times), _kernels(times)))


def _steps(times: TraceTimes) -> Table:
    """Each step, and all together where there are several."""
    loads = times.total.loading_ns > 0
    columns = ("step", "computes", "collectives", "copies", "waits for the host", "waits, launched", "together")
    of_loading = ("host loads data", "while the GPU waits") if loads else ()
    total = [("all", times.total)] if len(times.steps) > 1 else []
    shown = [(step_words(step.name), step) for step in times.steps[:_MOST_STEPS]]
    return Table(
        "Where the time went",
        (*columns, *of_loading),
        tuple((name, *_parts(step, loads)) for name, step in (*total, *shown)),
    )


def _parts(step: StepTimes, loads: bool) -> tuple[str, ...]:
    parts = (step.compute_ns, step.communication_ns, step.copies_ns, step.host_wait_ns, step.launched_wait_ns)
    loading = (step.loading_ns, step.loading_wait_ns) if loads else ()
    return tuple(_ms(value) for value in (*parts, step.wall_ns, *loading))


def _launchers(times: TraceTimes) -> Table:
    rows = tuple(
        (
            *map(_ms, (row.forward_ns, row.backward_ns, row.other_ns, row.host_wait_ns)),
            f"{row.count:,}",
            *_place(row.launcher),
        )
        for row in times.rows[:_MOST_ROWS]
    )
    columns = ("forward", "backward", "other", "waited for", "kernels", "operator and line", "module")
    return Table("Work by who launched it, and how long the GPU waited for that", columns, rows)


def _kernels(times: TraceTimes) -> Table:
    rows = tuple(
        (
            _ms(kernel.total_ns),
            _ms(kernel.longest_ns),
            f"{kernel.count:,}",
            kernel.name,
            *_place(kernel.launcher),
        )
        for kernel in times.kernels[:_MOST_ROWS]
    )
    columns = ("together", "longest", "times", "kernel", "operator and line", "module")
    return Table("The longest kernels, by who launched them", columns, rows)


def _place(launcher: PlaceInCode) -> tuple[Cell, ...]:
    words = launcher.op or "no operator"
    place: Cell = FileCell(words, launcher.file, launcher.line) if launcher.file else words
    return place, launcher.module or ""


def _ms(duration_ns: int) -> str:
    return f"{ms(duration_ns):,.3f} ms"
