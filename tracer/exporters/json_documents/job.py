"""A whole job as JSON, for scripts: every rank, groups of equal ones, and what the worst one has more."""

from __future__ import annotations

import json
from dataclasses import asdict

from tracer.analysis.peak_diff import Change
from tracer.analysis.snapshots.job import JobFinding, RankPeak
from tracer.command_line import this_command
from tracer.exporters.json_documents.header import json_header

VERSION = 1


def job_json(finding: JobFinding) -> str:
    """What `explain_job` returned; docs/files.md describes it."""
    difference = finding.difference
    values = {
        **json_header("job", VERSION, torch=None, command=this_command()),
        "worst_rank": finding.worst.name if finding.worst is not None else None,
        "typical_rank": finding.typical.name if finding.typical is not None else None,
        "missing": list(finding.missing),
        "ranks": [_values(rank) for rank in finding.ranks],
        "unreadable": [
            {"file": recording.file, "rank": recording.rank, "problem": recording.problem}
            for recording in finding.unreadable
        ],
        "groups": [
            {"is_odd": group.is_odd, "words": list(group.words), "files": [rank.file for rank in group.ranks]}
            for group in finding.groups
        ],
        "worst_against_typical": []
        if difference is None
        else [_change(change) for change in difference.changes["stack"]],
    }
    return json.dumps(values, indent=2)


def _change(change: Change) -> dict[str, object]:
    kind, *stack = change.name
    values = asdict(change)
    del values["name"]
    return {"kind": kind, "stack": stack, **values}


def _values(rank: RankPeak) -> dict[str, object]:
    return {
        "file": rank.file,
        "rank": rank.rank,
        "stage": rank.role.stage,
        "tensor_rank": rank.role.tensor,
        "data_rank": rank.role.data,
        "strategies": list(rank.role.strategies),
        "device": rank.device,
        "entries": rank.entries,
        "peak_requested_bytes": rank.peak_bytes,
        "reserved_at_peak_bytes": rank.reserved_bytes,
        "by_kind": dict(rank.kinds),
        "out_of_memory": rank.out_of_memory or None,
    }
