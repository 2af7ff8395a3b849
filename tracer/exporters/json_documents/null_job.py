"""A job on the null GPU as a document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.null_gpu.nccl_buffers import NcclBuffers
from tracer.results.null_job import NullJob
from tracer.results.null_run import CAVEAT


def null_job_json(job: NullJob) -> dict[str, Any]:
    """The job, with what each rank that ran has at its peak, in bytes."""
    worst = job.worst
    return {
        "format": "torch-timeline null job",
        "caveat": CAVEAT,
        "card": job.devices.card.label,
        "card_bytes": job.devices.card.usable_bytes,
        "context_bytes": CONTEXT_BYTES,
        "world_size": job.devices.count,
        "per_node": job.per_node,
        "fits": job.fits,
        "worst_rank": worst.rank if worst is not None else None,
        "ranks": [{**asdict(run), "nccl": _nccl(run.nccl)} for run in job.runs],
    }


def _nccl(nccl: NcclBuffers) -> dict[str, int]:
    return {**asdict(nccl), "least_bytes": nccl.least_bytes, "most_bytes": nccl.most_bytes}
