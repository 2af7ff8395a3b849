"""The tracer beside an independent bookkeeper, on programs of many kinds: what it breaks, and what it says of the peak.

    uv run python -m benchmarks.truth [--programs NAME ...] [--details] [--on CARD | --here] [--workers N]

Each program runs four times from the same seed, each in a process of its own: unwatched, under `profile_training`,
under the bookkeeper in tests/truth, which shares no code with the tracer, and under a bare profiler, for what the
allocator counts. What is compared and by which rule is in tests/truth/verdict.py. `unchanged` is losses, weights,
random states, compilations, what is left behind in torch and which batches are alive after each step; `let go` that
nothing of the program is kept afterwards. The peak is right between what tensors held and what the allocator gave out.
Kinds are in bytes of those blocks that the bookkeeper can prove something about; modules and lines are of the three
largest places that made activations; `beside torch` is the part of the driver's count there that has a place.

With `--on h100`, say, programs are on that card as the null GPU has it. Each runs three times: unwatched, where the
allocator itself counts the peak of the recorded steps, watched, and under the bookkeeper, for kinds. With `--here`
they are on the GPU of this machine, but for those that need several ranks.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

from benchmarks.tables import as_markdown
from tests.truth.catalogue import names
from tests.truth.on_device import judge_on_device
from tests.truth.verdict import Share, Verdict, judge
from tracer.null_gpu.cards import devices_of
from tracer.null_gpu.process import restart_on

HEADER = [
    "program",
    "no crash",
    "unchanged",
    "let go",
    "sum",
    "peak, ours",
    "peak, true",
    "",
    "kinds right",
    "module",
    "line",
    "beside torch",
]


def row_of(verdict: Verdict) -> list[str]:
    """A program in the table."""
    if verdict.broken:
        return [verdict.name, "does not run", *[""] * (len(HEADER) - 2)]
    if verdict.crash:
        return [verdict.name, "CRASH", *[""] * (len(HEADER) - 2)]
    least, most = verdict.true_bytes
    bounds = f"{least:,}" if most == least else f"{least:,} to {most:,}"
    checks = [_mark(not verdict.changed), _mark(not verdict.kept), _mark(not verdict.wrong_sum)]
    shares = [_percent(verdict.kinds), _fraction(verdict.modules), _fraction(verdict.lines), _percent(verdict.beside)]
    return [
        verdict.name, "yes", *checks, f"{verdict.claimed_bytes:,}", bounds, _mark(not verdict.wrong_peak), *shares,
    ]  # fmt: skip


def total_row(verdicts: Sequence[Verdict]) -> list[str]:
    """Row of the totals: how many of how many, and all bytes together."""
    whole = [verdict for verdict in verdicts if not verdict.broken]
    ran = [verdict for verdict in whole if not verdict.crash]

    def count(is_right: Callable[[Verdict], bool]) -> str:
        return f"{sum(map(is_right, ran))} of {len(whole)}"

    def total(shares: list[Share | None]) -> Share:
        return reduce(Share.__add__, [share for share in shares if share is not None], Share())

    return [
        f"all {len(verdicts)}",
        f"{len(ran)} of {len(whole)}",
        count(lambda each: not each.changed),
        count(lambda each: not each.kept),
        count(lambda each: not each.wrong_sum),
        "",
        "",
        count(lambda each: not each.wrong_peak),
        _percent(total([each.kinds for each in ran])),
        _fraction(total([each.modules for each in ran])),
        _fraction(total([each.lines for each in ran])),
        _percent(total([each.beside for each in ran])),
    ]


def details_of(verdict: Verdict) -> list[str]:
    """Lines that say what is wrong."""
    found = {"broken": verdict.broken} if verdict.broken else verdict.wrong
    texts = [(what, text) for what, value in found.items() for text in ([value] if isinstance(value, str) else value)]
    return [f"- {verdict.name}, {what}: {text.strip().splitlines()[-1].replace('|', '/')}" for what, text in texts]


def line_of(row: Sequence[str]) -> str:
    return f"| {' | '.join(row)} |"


def _mark(is_right: bool) -> str:
    return "yes" if is_right else "NO"


def _percent(share: Share | None) -> str:
    return "-" if share is None or share.of == 0 else f"{100 * share.right / share.of:.1f} %"


def _fraction(share: Share | None) -> str:
    return "-" if share is None or share.of == 0 else f"{share.right} of {share.of}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", choices=names(on_device=True), metavar="NAME")
    parser.add_argument("--details", action="store_true", help="say below the table what is wrong")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--on", metavar="CARD", help="on this card, as the null GPU has it")
    where.add_argument("--here", action="store_true", help="on the GPU of this machine")
    parser.add_argument("--workers", type=int, default=1, help="programs at a time")
    options = parser.parse_args()
    is_on_device = options.here or options.on is not None
    options.programs = options.programs or names(on_device=is_on_device, of_ranks=not options.here)
    if options.on is not None:
        devices = devices_of(options.on)
        restart_on([devices.card] * devices.count)
    print(as_markdown([HEADER]), flush=True)
    verdicts = []
    with ThreadPoolExecutor(options.workers) as pool:
        for verdict in pool.map(judge_on_device if is_on_device else judge, options.programs):
            verdicts.append(verdict)
            print(line_of(row_of(verdict)), flush=True)
    print(line_of(total_row(verdicts)))
    if options.details:
        print("\n".join(["", *(line for verdict in verdicts for line in details_of(verdict))]))


if __name__ == "__main__":
    main()
