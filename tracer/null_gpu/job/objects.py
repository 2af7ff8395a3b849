"""Lists of objects that ranks give each other, handed on through files: the ranks run one after the other."""

from __future__ import annotations

import ctypes
import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from tracer.capture.torch_private import torch_distributed
from tracer.errors import TracerError
from tracer.null_gpu.job.earlier import run_earlier_ranks

_MOST_NUMBERS: Final = 4096
"""Larger tensors of integers are data, not what ranks tell each other."""


def is_of_numbers(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a few integers, as ranks compare them."""
    is_whole = not (tensor.is_floating_point() or tensor.is_complex())
    return type(tensor) is torch.Tensor and is_whole and 0 < tensor.numel() <= _MOST_NUMBERS and tensor.is_contiguous()


class Objects:
    """What this rank gives, and what it is given by ranks that ran before it.

    Objects are pickled, as torch itself does between ranks, in a folder that only the job's own processes write to.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._calls: Counter[tuple[object, ...]] = Counter()

    def share(
        self, objects: list[Any], source: int, group: Sequence[int], *, kind: str = "all", are_needed: bool = False
    ) -> None:
        """What the source has given all of a group at the same call; if it has not run, the list stays as it is.

        Args:
            kind: Of call; each has an order of its own.
            are_needed: Whether this rank has none that would do; the first rank then runs meanwhile, if it can.
        """
        path = self._path(kind, source, min(group), max(group), len(group))
        if are_needed and source < self._rank and not path.exists():
            run_earlier_ranks(self._folder)
        if source == self._rank:
            self._write(path, list(objects))
        elif path.exists():
            objects[:] = self._read(path)[: len(objects)]

    def share_numbers(self, tensor: torch.Tensor, source: int, group: Sequence[int]) -> None:
        """The same of a tensor's values: those of the source are copied into it."""
        # Not by an operator, which would be a value that the program has read: the null GPU's memory is the host's.
        held = bytearray(ctypes.string_at(tensor.data_ptr(), tensor.nbytes))
        own = torch.frombuffer(held, dtype=tensor.dtype).tolist()
        values = [own]
        self.share(values, source, group, kind="numbers")
        if values[0] != own:
            tensor.copy_(torch.tensor(values[0], dtype=tensor.dtype).view_as(tensor))

    def send(self, objects: list[Any], destination: int) -> None:
        """Leave objects for another rank."""
        self._write(self._path("one", self._rank, destination), list(objects))

    def receive(self, objects: list[Any], source: int) -> None:
        """Take objects that another rank has left for this one, or else what stands for them.

        Where no rank has left any, the first rank runs meanwhile, if the job's command can start it.

        Stages of a pipeline tell the next one the shapes of what they will send, and the one before the shapes of the
        gradients that come back: those of what it has sent. The stages in between say mostly the same, so that the
        words of the nearest earlier rank do where the one before has not run.

        Raises:
            TracerError: No rank before this one has sent any.
        """
        path = self._path("one", source, self._rank)
        if path.exists():
            objects[:] = self._read(path)[: len(objects)]
        elif (gradients := torch_distributed.gradients_of_stage()) is not None:
            objects[:] = [gradients]
        else:
            found = self._nearest()
            if not found and run_earlier_ranks(self._folder):
                found = self._nearest()
            if not found:
                raise TracerError(
                    f"Rank {self._rank} waits for objects of rank {source}, which has not run.",
                    hint=f"Run it before: --rank {source},{self._rank}.",
                )
            objects[:] = found[: len(objects)]

    def _nearest(self) -> list[Any]:
        """What the nearest rank, up to this one, has sent to the next stage; empty if none has."""
        names = sorted(self._folder.glob("one-*.pickle"), key=lambda path: [-int(n) for n in path.stem.split("-")[1:]])
        for path in names:
            objects = self._read(path) if int(path.stem.split("-")[1]) <= self._rank else []
            if objects and not torch_distributed.is_of_gradients(objects[0]):
                return objects
        return []

    def _path(self, kind: str, *ranks: int) -> Path:
        call = (kind, *ranks)
        self._calls[call] += 1
        return self._folder / f"{'-'.join(map(str, call))}-{self._calls[call]}.pickle"

    @staticmethod
    def _write(path: Path, objects: list[Any]) -> None:
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(pickle.dumps(objects))
        unfinished.replace(path)

    @staticmethod
    def _read(path: Path) -> list[Any]:
        objects: list[Any] = pickle.loads(path.read_bytes())
        return objects
