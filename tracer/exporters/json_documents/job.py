"""A whole job as JSON, for scripts: every rank, and groups of equal ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tracer.answers.answer import answer_values
from tracer.answers.answer_of_job import answer_of_job, answer_of_null_job
from tracer.answers.jobs import GpuSum, NullJob, recorded_sums
from tracer.answers.null_run import CAVEAT
from tracer.answers.ranks import JobFinding, RankPeak
from tracer.exporters.json_documents.header import json_header
from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.null_gpu.nccl_buffers import NcclBuffers

VERSION = 1


def job_json(finding: JobFinding) -> dict[str, Any]:
    """Return the JSON of a job's finding; docs/files.md describes it."""
    return {
        **json_header("job", VERSION),
        "answer": answer_values(answer_of_job(finding)),
        "worst_rank": finding.worst.name if finding.worst is not None else None,
        "typical_rank": finding.typical.name if finding.typical is not None else None,
        "missing": list(finding.missing),
        "ranks": [_values(rank) for rank in finding.ranks],
        "gpus": gpus_json(recorded_sums(finding.ranks)),
        "unreadable": [
            {"file": recording.file, "rank": recording.rank, "problem": recording.problem}
            for recording in finding.unreadable
        ],
        "groups": [
            {"is_odd": group.is_odd, "words": list(group.words), "files": [rank.file for rank in group.ranks]}
            for group in finding.groups
        ],
    }


def _values(rank: RankPeak) -> dict[str, object]:
    return {
        "file": rank.file,
        "rank": rank.rank,
        "stage": rank.stage,
        "device": rank.device,
        "entries": rank.entries,
        "peak_requested_bytes": rank.peak_bytes,
        "reserved_at_peak_bytes": rank.reserved_bytes,
        "by_kind": dict(rank.kinds),
        "out_of_memory": rank.out_of_memory or None,
    }


def null_job_json(job: NullJob) -> dict[str, Any]:
    """The job, with what each rank that ran has at its peak, in bytes."""
    worst = job.worst
    return {
        "format": "torch-timeline null job",
        "caveat": CAVEAT,
        "answer": answer_values(answer_of_null_job(job)),
        "card": job.devices.card.label,
        "card_bytes": job.devices.card.usable_bytes,
        "memory_bytes": job.devices.card.memory_bytes,
        "context_bytes": CONTEXT_BYTES,
        "world_size": job.devices.count,
        "per_node": job.per_node,
        "fits": job.fits,
        "worst_rank": worst.rank if worst is not None else None,
        "ranks": [{**asdict(run), "nccl": _nccl(run.nccl)} for run in job.runs],
        "gpus": gpus_json(job.gpus),
    }


def _nccl(buffers: NcclBuffers) -> dict[str, int]:
    return {**asdict(buffers), "least_bytes": buffers.least_bytes, "most_bytes": buffers.most_bytes}


def gpus_json(gpus: Sequence[GpuSum]) -> list[dict[str, Any]]:
    """Return the bytes that each process holds of each GPU."""
    return [
        {
            "node": gpu.node,
            "gpu": gpu.index,
            "held_bytes": gpu.held_bytes,
            "least_bytes": gpu.least_bytes,
            "most_bytes": gpu.most_bytes,
            "nccl": _nccl(gpu.nccl),
            "holdings": [{**asdict(holding), "bytes": holding.bytes} for holding in gpu.holdings],
        }
        for gpu in gpus
    ]
