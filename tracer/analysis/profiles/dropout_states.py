"""The random states that cuDNN keeps for the dropout of recurrent layers: one for each device, in no object."""

from __future__ import annotations

import numpy as np

from tracer.analysis.profiles.time_spans import enclosing, merged
from tracer.arrays import Bool, PerKey
from tracer.capture.recording import Recording
from tracer.capture.torch_names import BYTES, RECURRENT_OPERATORS


def dropout_states(recording: Recording) -> PerKey[Bool]:
    """[K] whether it is bytes that a recurrent layer was given: its other tensors are floats.

    The reserve that forward leaves for backward is bytes as well; but that the layer makes itself.
    """
    keys, edges, ops = recording.keys, recording.flow, recording.ops
    rows = recording.ops_named(RECURRENT_OPERATORS.__contains__)
    inside = enclosing(*merged(ops.start_ns[rows], ops.end_ns[rows]), edges.node_time_ns) >= 0
    is_given = np.zeros(len(keys.id), np.bool_)
    is_given[edges.edge_key[inside[edges.edge_node] & ~edges.edge_allocated]] = True
    is_bytes = recording.is_text(BYTES.__eq__)
    return np.asarray(is_given & is_bytes[keys.dtype], np.bool_)
