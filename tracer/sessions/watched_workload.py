"""A workload trained for as long as it is asked, under the flight recorder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tracer.sessions.watch import Screen, TrainingWatch
from tracer.workloads.workload import Workload, num_micro_batches


def watch_workload(
    workload: Workload, num_steps: int, *, save_dir: Path, settings: Mapping[str, object], screen: Screen
) -> bool:
    """Train and watch; False if a step failed, which the report explains.

    Raises:
        KeyboardInterrupt, SystemExit: Ctrl-C or SIGTERM has come; the report is written.
    """
    watch = TrainingWatch(
        workload.model, workload.optimizer, save_dir=save_dir, device=workload.device, settings=settings, screen=screen
    )
    try:
        with watch:
            for _ in range(num_steps):
                for _ in range(num_micro_batches(workload)):
                    batch = workload.next_batch()
                    watch.observe_batch(batch)
                    loss = workload.forward(batch)
                    workload.backward(loss)
                    del batch, loss
                workload.optimizer_step()
                watch.step()
    except Exception:
        if watch.report is None:
            raise
        return False
    return not watch.is_incomplete
