"""A program of its own that asks cuDNN which engine and workspace it would choose, on a machine without a GPU.

    python -m tracer.null_gpu.cudnn_answers LIBRARY_FOLDERS < problems > answers

The first line in is the device's properties as JSON, each further one a question; a line comes out for each: the
version, or 0 for one that is too old, then what `workspace_bytes` and `Graphs` say. cuDNN ends the process where a
library is missing that it needs, so it is never loaded into a process of torch's. Imports neither torch nor anything
of ours.

Source: cuDNN's graph API (`cudnn_graph.h`, device properties since 9.8), used as torch does in
aten/src/ATen/native/cudnn/Conv_v8.cpp: configurations of the instant heuristics in order, then the fallbacks; the
first that can be planned.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FIRST_VERSION = 90800
_LIBRARIES = ("libcudart.so*", "libnvrtc.so*", "libcublasLt.so*", "libcublas.so*")
# Kinds of descriptors and attributes, as numbered in cudnn_graph.h.
_CONVOLUTION, _ENGINE, _HEURISTICS, _PLAN, _GRAPH, _TENSOR, _DEVICE = 1, 2, 4, 5, 15, 17, 38
_ENGINE_CONFIG = 3
_DATA_TYPE, _INT64, _FLOAT, _MODE, _HEURISTICS_MODE, _NOTE = 1, 3, 4, 7, 8, 11
_DESCRIPTOR, _BEHAVIOR, _CHAR = 15, 19, 24
_CROSS_CORRELATION, _INSTANT, _FALLBACK = 1, 0, 2
_TENSOR_CORES, _DOWN_CONVERTS, _NONDETERMINISTIC = 0, 1, 4
_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
_NUMERICAL_NOTES, _BEHAVIOR_NOTES = 1303, 1305
_ALIGNMENT = 16  # of torch's allocator it is more, and no answer was seen to change
# operation: its descriptor, and the attributes alpha, beta, convolution, weight, input, output
_OPERATIONS = {
    "forward": (10, 700, 701, 702, 703, 704, 705),
    "backward_data": (12, 706, 707, 708, 709, 710, 711),
    "backward_filter": (11, 712, 713, 714, 715, 716, 717),
}
_MOST_CONFIGURATIONS = 64
_HOPPER = 900
_MOST_COPIES_BYTES, _LEAST_CHANNELS = 64 << 20, 40
_LEAST_SUMMANDS, _LEAST_ROWS, _FEW_SUMS, _MOST_PARTS = 6000, 400, 0.2, 16
_MOST_GRAPHS = 8


class CudnnError(Exception):
    """A call that cuDNN refused."""


class Cudnn:
    """The loaded cuDNN library."""

    def __init__(self, folders: Sequence[str]) -> None:
        for pattern in _LIBRARIES:
            for path in sorted(path for folder in folders for path in Path(folder).glob(pattern)):
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        path = next(path for folder in folders for path in sorted(Path(folder).glob("libcudnn.so*")))
        self.library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self.library.cudnnGetVersion.restype = ctypes.c_size_t
        self.version = int(self.library.cudnnGetVersion())

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library, with its status checked."""
        status = getattr(self.library, name)(*arguments)
        if status:
            words = ctypes.create_string_buffer(2048)
            self.library.cudnnGetLastErrorString(words, ctypes.c_size_t(len(words)))
            raise CudnnError(f"{name}: {status} {words.value.decode(errors='replace')}")


class Descriptor:
    """A descriptor of cuDNN's, which keeps alive what it refers to."""

    def __init__(self, cudnn: Cudnn, kind: int) -> None:
        self._cudnn = cudnn
        self._kept: list[object] = []
        self.pointer = ctypes.c_void_p()
        cudnn.call("cudnnBackendCreateDescriptor", ctypes.c_int(kind), ctypes.byref(self.pointer))

    def set(self, attribute: int, kind: int, values: Sequence[Any]) -> Descriptor:
        """Set an attribute."""
        number = len(values)
        array: Any
        if kind == _DESCRIPTOR:
            array = (ctypes.c_void_p * number)(*[value.pointer for value in values])
            self._kept += values
        elif kind == _CHAR:
            array = ctypes.create_string_buffer(bytes(values), number)
        else:
            of_kind: Any = {_INT64: ctypes.c_int64, _FLOAT: ctypes.c_float}.get(kind, ctypes.c_int)
            array = (of_kind * number)(*values)
        return self._set(attribute, kind, number, array)

    def set_bytes(self, attribute: int, kind: int, number: int, values: bytes) -> Descriptor:
        """Set an attribute from its bytes in memory; it is no descriptor."""
        return self._set(attribute, kind, number, ctypes.create_string_buffer(values, len(values) or 1))

    def _set(self, attribute: int, kind: int, number: int, array: Any) -> Descriptor:
        self._kept.append(array)
        self._cudnn.call(
            "cudnnBackendSetAttribute",
            self.pointer,
            ctypes.c_int(attribute),
            ctypes.c_int(kind),
            ctypes.c_int64(number),
            array,
        )
        return self

    def finish(self) -> Descriptor:
        """Finalize the descriptor: no attribute can be set any more."""
        self._cudnn.call("cudnnBackendFinalize", self.pointer)
        return self

    def get(self, attribute: int, kind: int, array: Any) -> int:
        """Read an attribute into an array; returns how many values there are."""
        number = ctypes.c_int64()
        self._cudnn.call(
            "cudnnBackendGetAttribute",
            self.pointer,
            ctypes.c_int(attribute),
            ctypes.c_int(kind),
            ctypes.c_int64(len(array)),
            ctypes.byref(number),
            array,
        )
        return int(number.value)

    def __del__(self) -> None:
        self._cudnn.library.cudnnBackendDestroyDescriptor(self.pointer)


def workspace_bytes(cudnn: Cudnn, device: Descriptor, num_sms: int, problem: dict[str, Any]) -> int:
    """Return the workspace of the engine that cuDNN would choose for a convolution.

    Args:
        num_sms: As `with_shared_sums`.
        problem: `operation`, `dtype`, `allow_tf32`, `deterministic`, sizes and strides of `x`, `w` and `y`,
            `padding`, `stride`, `dilation`.

    Raises:
        CudnnError: No engine can be planned.
    """
    graph = _graph(cudnn, problem)
    may_use_tensor_cores = problem["allow_tf32"] or problem["dtype"] != "float32"
    for mode in (_INSTANT, _FALLBACK):
        for configuration in _configurations(cudnn, device, graph, mode):
            notes = _notes(cudnn, configuration)
            if _DOWN_CONVERTS in notes or (_TENSOR_CORES in notes and not may_use_tensor_cores):
                continue
            if _NONDETERMINISTIC in notes and problem.get("deterministic"):
                continue
            try:
                return as_on_a_device(problem, _planned_bytes(cudnn, device, configuration), num_sms)
            except CudnnError:
                continue
    raise CudnnError("no engine")


def as_on_a_device(problem: dict[str, Any], said_bytes: int, num_sms: int) -> int:
    """The workspace of a convolution on a device, where cuDNN says another one of a card that is only described.

    Args:
        num_sms: As `with_shared_sums`.
    """
    product_bytes = of_matrix_product(problem)
    return with_shared_sums(problem, said_bytes, num_sms) if product_bytes is None else product_bytes


def of_matrix_product(problem: dict[str, Any]) -> int | None:
    """The workspace of a convolution with a kernel of one element, which is a product of matrices; None of others.

    cuDNN has engines for it that it does not offer for a device that is only described. On an H100, cuDNN 9.19 took 0
    or 400 bytes for most such outputs and gradients of inputs, and for that of the weights one copy in float32 for each
    sample, where these are few bytes. Channels last it takes what it says.
    """
    (x, x_strides), (w, _), (y, _) = problem["x"], problem["w"], problem["y"]
    is_plain = max(w[2:]) == max(problem["stride"]) == 1 and not any(problem["padding"]) and x[1] == w[1]
    if problem["dtype"] == "float64" or not is_plain or max(x[2:]) == 1 or x_strides[1] == 1:
        return None
    if problem["operation"] != "backward_filter":
        return 0
    copies_bytes = 4 * x[0] * math.prod(w)
    are_few = copies_bytes < min(_MOST_COPIES_BYTES, 3 * 4 * (math.prod(x) + math.prod(y)))
    return copies_bytes if are_few and w[1] >= _LEAST_CHANNELS else None


def with_shared_sums(problem: dict[str, Any], said_bytes: int, num_sms: int) -> int:
    """The workspace of a gradient of weights in float32, whose sums multiprocessors share.

    Of a described card cuDNN says too few of them. An H100 divided the sums until nearly each multiprocessor, or each
    second one, had a tile of the weights of 128 by 128 or 64 by 64, and kept all tiles behind copies of its tensors.

    Args:
        num_sms: Multiprocessors of a card of the H100's kind; 0 of others, of which that is not known.
    """
    (x, x_strides), (w, _), (y, _) = problem["x"], problem["w"], problem["y"]
    is_plain = problem["dtype"] == "float32" and x[1] == w[1] and x_strides[1] > 1
    if not num_sms or problem["operation"] != "backward_filter" or not is_plain:
        return said_bytes
    side, rows = 64 if w[0] <= 64 else 128, math.prod(w[1:])
    tiles = math.ceil(w[0] / side) * math.ceil(rows / side)
    if rows < _LEAST_ROWS or (tiles <= num_sms and y[0] * math.prod(y[2:]) < _LEAST_SUMMANDS):
        return said_bytes
    is_half = num_sms >= tiles > num_sms // 2 or num_sms // tiles > _MOST_PARTS
    in_use = num_sms // 2 if is_half else num_sms
    sums_bytes = 4 * side * side * (in_use // tiles * tiles if tiles <= in_use else in_use)
    copies_bytes = 4 * sum(map(math.prod, (x, w, y)))
    return copies_bytes + sums_bytes if 0 <= said_bytes - copies_bytes < _FEW_SUMS * sums_bytes else said_bytes


def _graph(cudnn: Cudnn, problem: dict[str, Any]) -> Descriptor:
    data_type = _TYPES[problem["dtype"]]
    tensors = {}
    for number, name in enumerate("wxy", start=1):
        sizes, strides = problem[name]
        tensor = Descriptor(cudnn, _TENSOR).set(906, _INT64, [number]).set(901, _DATA_TYPE, [data_type])
        tensor.set(902, _INT64, sizes).set(903, _INT64, strides).set(900, _INT64, [_ALIGNMENT])
        tensors[name] = tensor.finish()
    axes = len(problem["padding"])
    convolution = Descriptor(cudnn, _CONVOLUTION)
    convolution.set(100, _DATA_TYPE, [_TYPES["float64" if problem["dtype"] == "float64" else "float32"]])
    convolution.set(101, _MODE, [_CROSS_CORRELATION]).set(106, _INT64, [axes])
    convolution.set(102, _INT64, problem["dilation"]).set(103, _INT64, problem["stride"])
    convolution.set(104, _INT64, problem["padding"]).set(105, _INT64, problem["padding"]).finish()
    kind, alpha, beta, of_convolution, *of_tensors = _OPERATIONS[problem["operation"]]
    operation = Descriptor(cudnn, kind).set(alpha, _FLOAT, [1.0]).set(beta, _FLOAT, [0.0])
    operation.set(of_convolution, _DESCRIPTOR, [convolution])
    for attribute, name in zip(of_tensors, "wxy", strict=True):
        operation.set(attribute, _DESCRIPTOR, [tensors[name]])
    return Descriptor(cudnn, _GRAPH).set(801, _DESCRIPTOR, [operation.finish()]).finish()


def _configurations(cudnn: Cudnn, device: Descriptor, graph: Descriptor, mode: int) -> Iterator[Descriptor]:
    heuristics = Descriptor(cudnn, _HEURISTICS).set(201, _DESCRIPTOR, [graph])
    heuristics.set(200, _HEURISTICS_MODE, [mode]).set(204, _DESCRIPTOR, [device])
    try:
        heuristics.finish()
    except CudnnError:
        return
    descriptors = [Descriptor(cudnn, _ENGINE_CONFIG) for _ in range(_MOST_CONFIGURATIONS)]
    array = (ctypes.c_void_p * len(descriptors))(*[descriptor.pointer for descriptor in descriptors])
    number = heuristics.get(202, _DESCRIPTOR, array)
    yield from descriptors[: min(number, len(descriptors))]


def _notes(cudnn: Cudnn, configuration: Descriptor, attribute: int = _NUMERICAL_NOTES) -> list[int]:
    engine = Descriptor(cudnn, _ENGINE)
    configuration.get(300, _DESCRIPTOR, (ctypes.c_void_p * 1)(engine.pointer))
    notes = (ctypes.c_int * 32)()
    return list(notes[: engine.get(attribute, _NOTE if attribute == _NUMERICAL_NOTES else _BEHAVIOR, notes)])


def _planned_bytes(cudnn: Cudnn, device: Descriptor, configuration: Descriptor) -> int:
    plan = Descriptor(cudnn, _PLAN).set(401, _DESCRIPTOR, [configuration])
    plan.set(407, _DESCRIPTOR, [device]).finish()
    size = (ctypes.c_int64 * 1)()
    plan.get(402, _INT64, size)
    return int(size[0])


class Graphs:
    """Engines for graphs of operations that another process has described, descriptor by descriptor.

    A question has `graph`, a list of descriptors `[kind, [attribute, type, number, values], ...]` whose values are
    bytes as hexadecimal digits or the places of descriptors before it, the last of which is the graph; the heuristics'
    `mode`; and an `index`.
    """

    def __init__(self, cudnn: Cudnn, device: Descriptor, num_sms: int) -> None:
        self._cudnn, self._device, self._num_sms = cudnn, device, num_sms
        self._known: dict[str, list[Descriptor]] = {}

    def answer(self, question: dict[str, Any]) -> str:
        """Numbers: with an index of 0 and more bytes of workspace, or -1 where cuDNN cannot plan that engine.

        With an index of -1 the number of engines, 1 if another one that takes nothing may stand behind them, and for
        each engine the number of its numerical notes and they, the number of its notes of behavior and they.
        """
        engines = self._engines(question["graph"], question["mode"])
        if question["index"] >= 0:
            try:
                said_bytes = _planned_bytes(self._cudnn, self._device, engines[question["index"]])
            except CudnnError:
                return "-1"
            problem = _convolution_in(question["graph"])
            return str(said_bytes if problem is None else as_on_a_device(problem, said_bytes, self._num_sms))
        is_last = question["mode"] == _FALLBACK or not (engines or self._engines(question["graph"], _FALLBACK))
        numbers = [len(engines), int(is_last)]
        for engine in engines:
            for attribute in (_NUMERICAL_NOTES, _BEHAVIOR_NOTES):
                notes = _notes(self._cudnn, engine, attribute)
                numbers += [len(notes), *notes]
        return " ".join(map(str, numbers))

    def _engines(self, graph: list[Any], mode: int) -> list[Descriptor]:
        key = json.dumps([graph, mode])
        if key not in self._known:
            if len(self._known) >= _MOST_GRAPHS:
                del self._known[next(iter(self._known))]
            try:
                descriptor = self._made(graph)
                self._known[key] = list(_configurations(self._cudnn, self._device, descriptor, mode))
            except CudnnError:
                self._known[key] = []
        return self._known[key]

    def _made(self, graph: list[Any]) -> Descriptor:
        descriptors: list[Descriptor] = []
        for kind, *attributes in graph:
            descriptor = Descriptor(self._cudnn, kind)
            for attribute, value_type, number, values in attributes:
                if value_type == _DESCRIPTOR:
                    descriptor.set(attribute, value_type, [descriptors[place] for place in values])
                else:
                    descriptor.set_bytes(attribute, value_type, number, bytes.fromhex(values))
            descriptors.append(descriptor.finish())
        return descriptors[-1]


def _convolution_in(graph: list[Any]) -> dict[str, Any] | None:
    """A graph of one convolution as `workspace_bytes` wants it; None of any other graph."""
    told = [
        {
            name: values if of_type == _DESCRIPTOR else _numbers(of_type, values)
            for name, of_type, _, values in attributes
        }
        for _, *attributes in graph
    ]
    operations = {kind: (name, attributes) for name, (kind, *attributes) in _OPERATIONS.items()}
    found = [(*operations[kind], told[place]) for place, (kind, *_) in enumerate(graph) if kind in operations]
    if len(found) != 1 or len(graph) != 6:
        return None
    operation, (_, _, of_convolution, *of_tensors), operands = found[0]
    convolution = told[operands[of_convolution][0]]
    tensors = {name: told[operands[of][0]] for name, of in zip("wxy", of_tensors, strict=True)}
    return {
        "operation": operation,
        "dtype": next((name for name, kind in _TYPES.items() if [kind] == tensors["x"][901]), ""),
        "padding": convolution[104],
        "stride": convolution[103],
        **{name: (tensor[902], tensor[903]) for name, tensor in tensors.items()},
    }


def _numbers(of_type: int, digits: str) -> list[int]:
    """The integers in an attribute; none of other types."""
    size = {_INT64: "q", _DATA_TYPE: "i"}.get(of_type)
    return [] if size is None else [number for (number,) in struct.iter_unpack(f"<{size}", bytes.fromhex(digits))]


def main() -> None:
    """Answer until there are no more questions; -1 where no engine can be planned."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the answers are those of the card that is described, on every machine
    cudnn = Cudnn(sys.argv[1:])
    properties = json.loads(sys.stdin.readline())
    print(cudnn.version if cudnn.version >= FIRST_VERSION else 0, flush=True)
    if cudnn.version < FIRST_VERSION:
        return
    device = Descriptor(cudnn, _DEVICE).set(2702, _CHAR, json.dumps(properties).encode() + b"\0").finish()
    num_sms = properties["multiProcessorCount"] if properties["deviceVer"] == _HOPPER else 0
    graphs = Graphs(cudnn, device, num_sms)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            is_graph = "graph" in question
            print(
                graphs.answer(question) if is_graph else workspace_bytes(cudnn, device, num_sms, question), flush=True
            )
        except CudnnError:
            print(-1, flush=True)


if __name__ == "__main__":
    main()
