"""What ran on the device, read from a finished recording of the profiler's."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from tracer.capture.recording import Kernels
from tracer.capture.torch_private.torch_profiler import HOST_DEVICE_TYPE, check_kernel_events


def read_kernels(results: Any, threads: Mapping[int, int], operators: Container[str]) -> Kernels | None:
    """Read what ran on the device.

    A kernel carries the number of the innermost operator that was running when it was launched. Kernels without one,
    launched outside any operator, are left out: no row is theirs.

    Returns:
        None if nothing ran on a device, which is so on the CPU.

    Raises:
        RecordingError: torch's private types have changed.

    Source:
        `_parse_kineto_results` in `torch/autograd/profiler.py`.
    """
    check_kernel_events()
    events = results.events()
    launched = [
        (event.linked_correlation_id(), event.duration_ns())
        for event in events
        if event.device_type() != HOST_DEVICE_TYPE
        and event.linked_correlation_id() > 0
        # A region that the program named lies on the device's timeline too, over all the kernels launched inside it.
        and not event.is_user_annotation()
    ]
    if not launched:
        return None
    wanted = {number for number, _ in launched}
    # Calls of the driver are events of the host too. Most are linked to an operator; of the others, made outside any,
    # only the name says that they are none: their numbers count anew from 1 and may be those of operators (pytorch
    # pull 196282).
    operator = {
        event.correlation_id(): (event.start_ns(), threads.get(event.start_thread_id(), -1))
        for event in events
        if event.correlation_id() in wanted
        and event.linked_correlation_id() == 0
        and event.device_type() == HOST_DEVICE_TYPE
        and event.name() in operators
    }
    rows = [(*operator[number], duration_ns) for number, duration_ns in launched if number in operator]
    launched_ns, thread, duration = np.array(rows, np.int64).reshape(-1, 3).T
    return Kernels(*(np.ascontiguousarray(column) for column in (launched_ns, thread, duration)))
