"""The events of a trace that say something, packed row by row: 56 bytes instead of the kilobyte that a dict takes.

Times are whole nanoseconds: absolute microseconds times 1000 are no longer exact in floating point.

Source:
    torch/csrc/profiler/kineto_shim.cpp and collection.cpp (arguments), libkineto's output_json.cpp (categories); before
    torch 1.12 categories were words such as `Operator`, and kernels' arguments were spelled `external id`.
"""

from __future__ import annotations

import marshal
from decimal import Decimal
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracer.arrays import Interned
from tracer.errors import RecordingError
from tracer.snapshot.remarks import printable

MAX_EVENTS: Final = 200_000_000
NOT_COUNTED: Final = -(1 << 63)  # The allocator's count of an event that does not say it
MEMORY_EVENT: Final = "[memory]"
NS_PER_US: Final = 1000
# Sums and differences of two times and `baseTimeNanoseconds` fit into 64 bits.
_MAX_TIME_US: Final = 4_000_000_000_000_000
# Traces of minutes are large already; an event that has no end lasts for centuries.
_MAX_DURATION_US: Final = 30 * 24 * 3600 * 1_000_000


class WorkKind(IntEnum):
    """Kinds of rows of a device's work."""

    KERNEL = 0
    COPY = 1
    FILL = 2


_OPERATORS, _PYTHON, _OF_DEVICE, _CALLS = range(4)
_REGION = "user_annotation"
_WORK = {
    "kernel": WorkKind.KERNEL,
    "concurrent_kernel": WorkKind.KERNEL,
    "gpu_memcpy": WorkKind.COPY,
    "gpu_memset": WorkKind.FILL,
    "Kernel": WorkKind.KERNEL,
    "Memcpy": WorkKind.COPY,
    "Memset": WorkKind.FILL,
}
_TABLES: Final = {
    **dict.fromkeys(("cpu_op", _REGION, "Operator"), _OPERATORS),
    **dict.fromkeys(("python_function", "Python"), _PYTHON),
    **dict.fromkeys(_WORK, _OF_DEVICE),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "privateuse1_runtime"), _CALLS),
}
"""The table of the events of each category."""

OPERATOR_ROW: Final = np.dtype(
    [("start_ns", "<i8"), ("duration_ns", "<i8"), ("external_id", "<i8"), ("sequence_number", "<i8"),
     ("thread", "<i4"), ("name", "<i4"), ("is_region", "<i4"), ("shapes", "<i4")]
)  # fmt: skip
PYTHON_ROW: Final = np.dtype(
    [("start_ns", "<i8"), ("duration_ns", "<i8"), ("id", "<i8"), ("parent_id", "<i8"),
     ("thread", "<i4"), ("name", "<i4"), ("called_from", "<i4"), ("none", "<i4")]
)  # fmt: skip
MEMORY_ROW: Final = np.dtype(
    [("time_ns", "<i8"), ("address", "<i8"), ("size_bytes", "<i8"), ("allocated_bytes", "<i8"),
     ("reserved_bytes", "<i8"), ("thread", "<i4"), ("device", "<i4")]
)  # fmt: skip
WORK_ROW: Final = np.dtype(
    [("start_ns", "<i8"), ("duration_ns", "<i8"), ("external_id", "<i8"), ("correlation", "<i8"),
     ("device", "<i4"), ("stream", "<i4"), ("name", "<i4"), ("kind", "<i4"), ("group", "<i4")]
)  # fmt: skip
CALL_ROW: Final = np.dtype(
    [("start_ns", "<i8"), ("duration_ns", "<i8"), ("correlation", "<i8"), ("thread", "<i4"), ("name", "<i4")]
)
_pack_host, _pack_memory = Struct("<qqqqiiii").pack, Struct("<qqqqqii").pack
_pack_work, _pack_call = Struct("<qqqqiiiii").pack, Struct("<qqqii").pack
_NO_ARGS: Final[dict[str, Any]] = {}
Table = npt.NDArray[np.void]


class InternedTexts(Interned):
    """Distinct texts, numbered."""

    def __missing__(self, value: Any) -> int:
        if type(value) is not str:
            raise TypeError("no text")
        return super().__missing__(value)


class TraceTables:
    """The tables of one trace, and the values that their numbers stand for.

    Attributes:
        names: Names of events and places in code, as the file has them.
        devices: Pairs of type and index, as torch's allocator events have them.
        num_events: All, those that say nothing here too.
        num_odd: Events that lack what their kind has.
        num_impossible: Events whose duration no event can have.
        num_without_address: Allocator events of before torch 1.10 or so, which say no address.
        num_without_count: Allocator events that do not say what the allocator counts.
    """

    def __init__(self) -> None:
        self.names, self.threads, self.devices, self.shapes = InternedTexts(), Interned(), Interned(), Interned()
        self.shapes[()]
        self.num_events = self.num_odd = self.num_impossible = 0
        self.num_without_address = self.num_without_count = 0
        self._packed_shapes: dict[bytes, int] = {}
        self._operators, self._python, self._memory = bytearray(), bytearray(), bytearray()
        self._work, self._calls = bytearray(), bytearray()

    @property
    def has_shapes(self) -> bool:
        """Whether some operator says the shapes of its inputs."""
        return len(self._packed_shapes) > 0

    @property
    def operators(self) -> Table:
        """Operators and named regions, as `OPERATOR_ROW`."""
        return np.frombuffer(self._operators, OPERATOR_ROW)

    @property
    def python(self) -> Table:
        """Python's calls, as `PYTHON_ROW`."""
        return np.frombuffer(self._python, PYTHON_ROW)

    @property
    def memory(self) -> Table:
        """Reports of allocators, as `MEMORY_ROW`, in the order of the file."""
        return np.frombuffer(self._memory, MEMORY_ROW)

    @property
    def work(self) -> Table:
        """Kernels, copies and fills on devices, as `WORK_ROW`."""
        return np.frombuffer(self._work, WORK_ROW)

    @property
    def calls(self) -> Table:
        """Calls of the device's driver, as `CALL_ROW`."""
        return np.frombuffer(self._calls, CALL_ROW)

    def texts(self) -> list[str]:
        """Names by their numbers, made safe to be shown."""
        return list(map(printable, self.names))

    def replace(self, name: str, rows: Table) -> None:
        """Set one of the tables: `operators`, `python`, `memory`, `work` or `calls`."""
        setattr(self, f"_{name}", bytearray(rows.tobytes()))

    def add(self, events: list[Any]) -> None:
        """Take some events; this loop runs once per event, and is half of the cost of reading a trace.

        Raises:
            RecordingError: There are more than any trace has.
        """
        self.num_events += len(events)
        if self.num_events > MAX_EVENTS:
            raise RecordingError(f"It has more than {MAX_EVENTS:,} events.", hint="Record fewer steps.")
        names, threads = self.names, self.threads
        for event in events:
            try:
                phase = event["ph"]
                if phase == "X":
                    category = event.get("cat")
                    table = _TABLES.get(category)
                    if table is None:
                        continue
                    start, name = in_ns(event["ts"]), names[event["name"]]
                    duration = _duration_ns(event.get("dur", 0))
                    if duration < 0:
                        self.num_impossible += 1
                        continue
                    get = (event.get("args") or _NO_ARGS).get
                    if table == _PYTHON:
                        above, came_from = get("Python parent id"), get("CallFrom")
                        self._python += _pack_host(
                            start, duration, get("Python id", -1), -1 if above is None else above,
                            threads[event["pid"], event["tid"]], name,
                            -1 if came_from is None else names[came_from], 0,
                        )  # fmt: skip
                    elif table == _OPERATORS:
                        shapes = get("Input Dims")
                        self._operators += _pack_host(
                            start, duration, get("External id", -1), get("Sequence number", -1),
                            threads[event["pid"], event["tid"]], name, category == _REGION,
                            self._shapes(shapes) if shapes else 0,
                        )  # fmt: skip
                    elif table == _CALLS:
                        self._calls += _pack_call(
                            start, duration, get("correlation", -1), threads[event["pid"], event["tid"]], name
                        )
                    else:
                        external, group = get("External id"), get("Process Group Ranks")
                        self._work += _pack_work(
                            start, duration, get("external id", -1) if external is None else external,
                            get("correlation", -1), int(get("device", -1)), int(get("stream", -1)), name,
                            _WORK[category],
                            -1 if group is None else names[str(group)],
                        )  # fmt: skip
                elif phase == "i" and event["name"] == MEMORY_EVENT:
                    self._add_memory(event)
            except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError, StructError):
                self.num_odd += 1

    def _shapes(self, dims: Any) -> int:
        """The number of an operator's input shapes; those of lists of tensors follow each other."""
        packed = marshal.dumps(dims)
        number = self._packed_shapes.get(packed)
        if number is None:
            number = self.shapes[tuple(tuple(shape) for shape in _flat(dims) if shape)]
            self._packed_shapes[packed] = number
        return number

    def _add_memory(self, event: dict[str, Any]) -> None:
        args = event["args"]
        if "Addr" not in args:
            self.num_without_address += 1
            return
        total = args.get("Total Allocated")
        self._memory += _pack_memory(
            in_ns(event["ts"]), args["Addr"], args["Bytes"], NOT_COUNTED if total is None else int(total),
            _id(args.get("Total Reserved")),
            self.threads[event["pid"], event["tid"]],
            self.devices[int(args.get("Device Type", 0)), int(args.get("Device Id", -1))],
        )  # fmt: skip
        self.num_without_count += total is None


def in_ns(microseconds: Any) -> int:
    """Return nanoseconds, exact for whole microseconds and for decimals.

    Raises:
        TypeError: It is no number.
        OverflowError: It is too large for the clock, or NaN.
    """
    kind = type(microseconds)
    if kind is not float and kind is not int and kind is not Decimal:
        raise TypeError("no number")
    if not -_MAX_TIME_US < microseconds < _MAX_TIME_US:
        raise OverflowError("no time")
    nanoseconds: int = round(microseconds * NS_PER_US)
    return nanoseconds


def _duration_ns(microseconds: Any) -> int:
    """Return nanoseconds, or -1 for a duration that no event can have."""
    if microseconds is None or not 0 <= microseconds <= _MAX_DURATION_US:
        return -1
    return in_ns(microseconds)


def _id(number: Any) -> int:
    """-1 where there is none."""
    return -1 if number is None else int(number)


def _flat(dims: list[Any]) -> list[Any]:
    shapes: list[Any] = []
    for shape in dims:
        if type(shape) is list and shape and type(shape[0]) is list:
            shapes.extend(shape)
        else:
            shapes.append(shape)
    return shapes
