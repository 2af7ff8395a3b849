"""The planner's results, as rows for outputs."""

from __future__ import annotations

from collections.abc import Mapping

from tracer.changes.planner import Advice, RehearsedChanges
from tracer.changes.recommendation import AdviceReport, Measured, Recommendation

_VISIBLE_SHARE = 0.0005


def report_of(advice: Advice, measured: Mapping[str, Measured] | None = None) -> AdviceReport:
    """Rows of advice."""
    measured = measured or {}

    def told(outcome: RehearsedChanges | None) -> Recommendation | None:
        if outcome is None or not outcome.changes:
            return None
        return _recommendation(outcome, measured.get(outcome.name))

    best = advice.best
    return AdviceReport(
        device=advice.device,
        peak_bytes=advice.base.peak_bytes,
        reserved_bytes=advice.base.reserved_bytes,
        rows=tuple(row for outcome in best if (row := told(outcome))),
        others=tuple(row for outcome in advice.outcomes if outcome not in best and (row := told(outcome))),
        together=told(advice.together),
        target_bytes=advice.target_bytes,
        fits=advice.target_bytes is None or advice.base.needed_bytes <= advice.target_bytes,
        fit=told(advice.fit),
        num_tried=advice.num_tried,
        not_tried=advice.not_tried,
    )


def _recommendation(outcome: RehearsedChanges, measured: Measured | None) -> Recommendation:
    return Recommendation(
        change=outcome.name,
        lines=tuple(line for change in outcome.changes for line in change.lines),
        saves_bytes=outcome.saved_bytes,
        saves_reserved_bytes=outcome.saved_reserved_bytes,
        peak_bytes=outcome.peak_bytes,
        reserved_bytes=outcome.reserved_bytes,
        results=outcome.keeps.words,
        cost=_cost(outcome),
        needs=" ".join(dict.fromkeys(change.needs for change in outcome.changes if change.needs)),
        how_found=_how_found(outcome, measured),
        measured=measured,
        group=outcome.group.key,
    )


def _how_found(outcome: RehearsedChanges, measured: Measured | None) -> str:
    if measured is not None:
        return "measured"
    return "replayed" if outcome.is_of_allocator else "rehearsed"


def _cost(outcome: RehearsedChanges) -> str:
    """Operations first, then what is not counted."""
    counted = f"{100 * outcome.more_flops:+.1f} % FLOPs" if abs(outcome.more_flops) > _VISIBLE_SHARE else ""
    words = [counted, *(change.cost for change in outcome.changes)]
    return "; ".join(dict.fromkeys(word.rstrip(".") for word in words if word))
