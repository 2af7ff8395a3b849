"""What cuDNN's recurrent layers and cuFFT's plans take beside their results: an H100's answers, and the null GPU's.

    python -m benchmarks.h100_answers

Needs ../shared/truth/h100_torch211 and says so without it: what cuDNN 9.19 and cuFFT 12 said there of layers and
transforms at random. The null GPU's libraries are asked the same by the same calls. Layers are those that torch can ask
for: cuDNN's standard algorithm, no projection, packed batches, or padded ones whose samples are all as long.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from ctypes import byref, c_int, c_longlong, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine import as_markdown
from tracer.null_gpu.cards import named_card
from tracer.null_gpu.process import environment, is_active

ROOT = Path(__file__).resolve().parent.parent
TRUTH = ROOT.parent / "shared" / "truth" / "h100_torch211"
_PADDED, _PACKED = (1, 0), (0, 1)  # Flags and layout, as torch gives them
_FFT_TYPES = {
    "c2c": (4, 4, 4),
    "r2c": (0, 4, 4),
    "c2r": (4, 0, 4),
    "z2z": (5, 5, 5),
    "d2z": (1, 5, 5),
    "z2d": (5, 1, 5),
}

Pair = tuple[int, int]  # Bytes on the H100, and here


def main() -> int:
    """Print the table; 2 without the truth."""
    if not TRUTH.is_dir():
        print(f"There is no {TRUTH.relative_to(ROOT.parent)} beside the project.")
        return 2
    if not is_active():
        card = named_card("NVIDIA H100 80GB HBM3")
        assert card is not None
        command = [sys.executable, "-m", "benchmarks.h100_answers"]
        return subprocess.run(command, cwd=ROOT, env=environment((card,)), check=False).returncode
    layers = [row for row in _rows("rnn") if row[1] is not None and _is_torchs(row[0])]
    plans = [row for row in _rows("fft") if row[4] == 0]
    found = {
        "recurrent layers, null GPU": list(_of_cudnn(layers)),
        "cuFFT, null GPU": [[pair] for pair in _of_cufft(plans)],
    }
    print(as_markdown([["", "answers", "to 0.1 %", "to 3 %", "most"], *(_row(*item) for item in found.items())]))
    return 0


def _rows(name: str) -> list[Any]:
    rows: list[Any] = json.loads((TRUTH / f"{name}.json").read_text())["rows"]
    return rows


def _is_torchs(asked: dict[str, int]) -> bool:
    same_length = asked["lens"] == asked["T"] * asked["B"]
    how = (asked["flags"], asked["layout"])
    return asked["algo"] == 0 and asked["proj"] == asked["hid"] and (how == _PACKED or (how == _PADDED and same_length))


def _row(name: str, answers: Sequence[Sequence[Pair]]) -> list[str]:
    off = [max(abs(here - there) / there if there else float(here > 0) for there, here in answer) for answer in answers]
    return [
        name,
        f"{len(off):,}",
        f"{sum(o <= 1e-3 for o in off):,}",
        f"{sum(o <= 0.03 for o in off):,}",
        f"{max(off):.1%}",
    ]


def _of_cudnn(rows: Sequence[Any]) -> Iterator[list[Pair]]:
    """Workspace of training, reserve and workspace of inference: of the null GPU's cuDNN."""
    cudnn = ctypes.CDLL("libcudnn.so.9")
    handle, recurrent, data = c_void_p(), c_void_p(), c_void_p()
    dropouts = [c_void_p(), c_void_p()]
    cudnn.cudnnCreate(byref(handle))
    cudnn.cudnnCreateRNNDescriptor(byref(recurrent))
    cudnn.cudnnCreateRNNDataDescriptor(byref(data))
    for dropout, probability in zip(dropouts, (0.0, 0.3), strict=True):
        cudnn.cudnnCreateDropoutDescriptor(byref(dropout))
        states = c_size_t()
        cudnn.cudnnDropoutGetStatesSize(handle, byref(states))
        at = torch.empty(states.value, dtype=torch.uint8, device="cuda").data_ptr()
        cudnn.cudnnSetDropoutDescriptor(dropout, handle, ctypes.c_float(probability), c_void_p(at), states, 1)
    for a, (training, reserve, inference, _, _) in rows:
        options = (
            a["algo"],
            a["mode"],
            a["bias"],
            a["bi"],
            0,
            a["dt"],
            a["mp"],
            a["mt"],
            a["inp"],
            a["hid"],
            a["proj"],
        )
        cudnn.cudnnSetRNNDescriptor_v8(recurrent, *options, a["layers"], dropouts[a["drop"]], c_uint32(a["flags"]))
        lengths = (c_int * a["B"])(*_lengths(a["lens"], a["B"], a["maxlen"]))
        cudnn.cudnnSetRNNDataDescriptor(data, a["dt"], a["layout"], a["T"], a["B"], a["inp"], lengths, None)
        said = []
        for trains in (1, 0):
            sizes = c_size_t(), c_size_t()
            cudnn.cudnnGetRNNTempSpaceSizes(handle, recurrent, trains, data, *map(byref, sizes))
            said += [size.value for size in sizes]
        yield list(zip((training, reserve, inference), said, strict=False))


def _lengths(total: int, samples: int, longest: int) -> Iterator[int]:
    """Lengths of samples with this sum, the longest first: the sizes follow from these three alone."""
    left = total - longest
    yield longest
    for after in range(samples - 2, -1, -1):
        length = min(longest, left - after)
        left -= length
        yield length


def _of_cufft(rows: Sequence[Any]) -> Iterator[Pair]:
    cufft = ctypes.CDLL("libcufft.so.12")
    for kind, sizes, batch, there, _ in rows:
        plan, scratch = c_int(), c_size_t()
        cufft.cufftCreate(byref(plan))
        taken, given, inside = _FFT_TYPES[kind]
        many = (c_longlong * len(sizes))(*sizes)
        apart = (c_longlong(1), c_longlong(1))
        cufft.cufftXtMakePlanMany(
            plan, len(sizes), many, None, *apart, taken, None, *apart, given, c_longlong(batch), byref(scratch), inside
        )
        yield there, scratch.value


if __name__ == "__main__":
    raise SystemExit(main())
