"""Packed columns read back, as `data.js` does it."""

from __future__ import annotations

import base64
import zlib

import numpy as np

from tracer.arrays import Ints
from tracer.exporters.page.pack import Packed


def unpack(packed: Packed) -> Ints:
    """What `pack` was given, [columns, rows]; the page does the same in `data.js`."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["packed"])), np.uint8).reshape(8, -1)
    deltas = np.ascontiguousarray(planes.T).view("<i8").reshape(packed["columns"], packed["rows"])
    return np.asarray(np.cumsum(deltas, axis=1), np.int64)
