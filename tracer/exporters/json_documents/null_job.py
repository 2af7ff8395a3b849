"""A job on the null GPU as a document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.null_gpu.nccl_buffers import NcclBuffers
from tracer.results.null_job import NullJob, RankRun
from tracer.results.null_run import CAVEAT


def null_job_json(job: NullJob) -> dict[str, Any]:
    """The job, with what each rank that ran has at its peak, in bytes."""
    worst = job.worst
    return {
        "format": "torch-timeline null job",
        "caveat": CAVEAT,
        "card": job.devices.card.label,
        "card_bytes": job.devices.card.usable_bytes,
        "memory_bytes": job.devices.card.memory_bytes,
        "context_bytes": CONTEXT_BYTES,
        "world_size": job.devices.count,
        "per_node": job.per_node,
        "fits": job.fits,
        "worst_rank": worst.rank if worst is not None else None,
        "ranks": [_rank(job, run) for run in job.runs],
    }


def _rank(job: NullJob, run: RankRun) -> dict[str, Any]:
    least_bytes, most_bytes = job.of_card_bytes(run)
    return {
        **asdict(run),
        "nccl": _nccl(run.nccl),
        "others_bytes": job.others_bytes(run),
        "of_card_least_bytes": least_bytes,
        "of_card_most_bytes": most_bytes,
    }


def _nccl(nccl: NcclBuffers) -> dict[str, int]:
    return {**asdict(nccl), "least_bytes": nccl.least_bytes, "most_bytes": nccl.most_bytes}
