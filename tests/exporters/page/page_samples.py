"""Pages for the tests: a hand-made one, a long one, one that only an attacker would record, and nothing at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tracer.answers.answer import Answer
from tracer.answers.rows import Row
from tracer.answers.tables import Place, Section, Table, columns
from tracer.arrays import Ints
from tracer.blocks.from_snapshot.timeline import Band
from tracer.blocks.table import Blocks
from tracer.exporters.page.data import page_data
from tracer.exporters.page.html import html_of_data
from tracer.exporters.page.model import Curve, Mark, Page

SCRIPT = "</script><script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(1)>"
MARKUP = "<b>bold</b> &lt;i&gt; %{y} $x$ <a href='javascript:alert(1)'>link</a>"

PLACE = (Place(IMAGE, f"/{IMAGE}", 1, (SCRIPT,)), SCRIPT)
SLOW = Table("Slow", (*columns("duration", "time"), *columns("text", "module")), ((3e6, "net.1"), (None, "net.0")))


def html_of(pages: Sequence[Page]) -> str:
    """The page of some devices as text."""
    data = [page_data(page, num_pages=len(pages)) for page in pages]
    return html_of_data({"shown": 0, "up": None, "pages": data})


def peak_row(size: int, **given: object) -> Row:
    """A row with everything but its size left at something harmless."""
    usual: dict[str, object] = {
        "count": 1,
        "category": "ACTIVATION",
        "torch_category": "ACTIVATION",
        "evidence": "torch's data flow",
        "phase": "forward",
        "module": "net.0",
        "op": "aten::mm",
        "file": "/srv/project/models/net.py",
        "line": 7,
    }
    return Row(bytes=size, **(usual | given))  # type: ignore[arg-type]


SAID = Answer(("Peak: so much.",))


def blocks_of(size: Ints, made_at: Ints, freed_at: Ints) -> Blocks:
    """Blocks of which no more is known."""
    return Blocks.of(len(size), size_bytes=size, made_at=made_at, freed_at=freed_at)


def with_blocks(page: Page, groups: tuple[Row, ...], row: int = 0) -> Page:
    """The page with these rows of its peak as blocks, each in use at one row of its times alone."""
    group = np.repeat(np.arange(len(groups)), [one.count for one in groups])
    size = np.array([one.bytes // one.count for one in groups], np.int64)[group]
    at = np.full(len(group), row, np.int64)
    times = page.times if len(page.times) else np.zeros(1, np.int64)
    blocks = blocks_of(size, at, at + 1)
    return replace(page, times=times, peak_row=row, blocks=blocks, groups=groups, group=group)


def small_page() -> Page:
    """Six events that can be checked by eye; the peak of 9000 bytes is the fourth, at 30 us of 50."""
    times = np.array([0, 10, 20, 30, 40, 50], np.int64) * 1000 + 1_700_000_000_000_000_000
    parameter = np.full(6, 2000, np.int64)
    activation = np.array([0, 3000, 5000, 4000, 1000, 0], np.int64)
    untagged = np.array([0, 0, 0, 3000, 0, 0], np.int64)
    at = times.tolist()
    page = Page(
        title="Small run",
        device="cpu",
        answer=Answer(
            ("Peak: 8.79 KiB on cpu in backward of step 5; 44 % of it activation.",),
            remarks=("Reserved memory does not exist on the CPU.",),
            sections=(Section("Time", ("By the host's clock.",), (SLOW,)),),
        ),
        times=times,
        series={"PARAMETER": parameter, "ACTIVATION": activation, "UNTAGGED": untagged},
        marks=(Mark("peak", "True peak", at[3], 9000), Mark("tagged", "Tagged peak", at[2], 7000)),
        bands=(
            Band("step", "ProfilerStep#4", at[0], at[5]),
            Band("forward", "forward", at[0], at[3]),
            Band("backward", "backward", at[3], at[5]),
        ),
        breakdown={"PARAMETER": 2000, "ACTIVATION": 4000, "UNTAGGED": 3000},
        run={"command": "python main.py", "torch": "2.15"},
    )
    rows = (
        peak_row(3500, count=2, op="aten::gelu"),
        peak_row(3000, category="UNTAGGED", torch_category=None, module="net.1", op="aten::add", line=9),
        peak_row(2000, category="PARAMETER", op=None, file=None, line=None, name="net.0.weight"),
        peak_row(500, module="net.2", line=123),
    )
    return with_blocks(page, rows, 3)


def long_page() -> Page:
    """More rows than are shown at first, of five kinds, with names and paths as long as those of programs."""
    page, kinds = small_page(), ("PARAMETER", "OPTIMIZER_STATE", "ACTIVATION", "AUTOGRAD_DETAIL", "TEMPORARY")
    rows = tuple(
        peak_row(
            512 * (number + 1),
            category=kinds[number % len(kinds)],
            module=f"blocks.{number % 6}.skip",
            file="/home/me/fno/models/layers.py",
            line=40 + 7 * number,
            name=f"blocks.{number % 6}.weight{number}",
        )
        for number in range(50)
    )
    sums = {kind: sum(row.bytes for row in rows if row.category == kind) for kind in kinds}
    at_peak = np.arange(len(page.times)) == 3
    peak = replace(page.marks[0], bytes=sum(sums.values()))
    series = {kind: at_peak * size for kind, size in sums.items()}
    return replace(with_blocks(page, rows, 3), series=series, breakdown=sums, marks=(peak,))


def one_event_page() -> Page:
    """A single allocation at time 0."""
    times = np.array([0], np.int64)
    page = Page(
        title="One event",
        device="cpu",
        answer=SAID,
        times=times,
        series={"INPUT": np.array([512], np.int64)},
        marks=(Mark("peak", "True peak", 0, 512),),
        breakdown={"INPUT": 512},
    )
    return with_blocks(page, (peak_row(512, category="INPUT"),))


def empty_page() -> Page:
    """A recording in which nothing was allocated."""
    return Page(title="Nothing", device="cpu", answer=Answer(("Nothing was recorded.",)))


def entries_page() -> Page:
    """A recording without times, and with lines but no categories."""
    entries = np.arange(5, dtype=np.int64)
    values = np.array([10, 50, 20, 70, 0], np.int64)
    return Page("Snapshot", "cuda:0", SAID, axis="entry", times=entries, lines=(Curve("allocated", entries, values),))


def hostile_page() -> Page:
    """Markup wherever a recording or its machine can put text."""
    times = np.arange(4, dtype=np.int64) * 1000
    levels = np.array([0, 100, 300, 0], np.int64)
    rows = (
        peak_row(200, category=IMAGE, module=SCRIPT, op=IMAGE, file=f"/tmp/{SCRIPT}.py", name=MARKUP, step=IMAGE),
        peak_row(60, module=MARKUP, op=MARKUP, file="javascript:alert(1)//.py", torch_category=SCRIPT, evidence=IMAGE),
        peak_row(40, module="\u2028\u2029\ud800\x00", op="%%data%%", file="//evil.example/x.py", phase=SCRIPT),
    )
    page = Page(
        title=SCRIPT,
        device=IMAGE,
        answer=Answer(
            (MARKUP,),
            remarks=(IMAGE, SCRIPT),
            sections=(Section(SCRIPT, (IMAGE,), (Table(MARKUP, columns("text", IMAGE, SCRIPT), (PLACE,), PLACE),)),),
        ),
        subtitle=MARKUP,
        times=times,
        series={IMAGE: levels, MARKUP: levels * 0 + 1},
        lines=(Curve(SCRIPT, times, levels),),
        marks=(Mark("peak", MARKUP, 2000, 300),),
        bands=(Band("step", MARKUP, 0, 3000), Band("forward", IMAGE, 0, 3000)),
        breakdown={IMAGE: 200, MARKUP: 100},
        run={IMAGE: SCRIPT, "command": MARKUP},
    )
    return with_blocks(page, rows, 2)
