"""Observations of the program's objects: addresses as columns; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Self

import numpy as np

from tracer.arrays import Int, Ints, PerObservation
from tracer.capture.sources.source_line import SourceLine


class Role(IntEnum):
    """Role of an object in a training run."""

    PARAMETER = 0
    BUFFER = 1
    GRADIENT = 2
    OPTIMIZER_STATE = 3
    INPUT = 4
    HELD = 5
    """A tensor that Python could reach, and that is none of the others."""
    ARGUMENT = 6
    """An argument of a model's call: an input, unless the program has computed it."""
    SAVED = 7
    """A tensor that a graph from before the recording keeps for backward."""
    WORKSPACE = 8
    """Memory that a library keeps for its own work, as cuBLAS does: in no tensor, and as large as such a workspace."""
    LEAF = 9
    """A leaf in no module and no optimizer that backward has given a gradient: a parameter if the program trains it."""
    IDLE = 10
    """No tensor, but a piece of a private pool that is not in use. CUDA graphs leave tensors behind in such memory. Of
    the CPU, a piece of a mapped file, which is not allocated; of a GPU, host memory that it reads."""
    BUCKET = 11
    """A bucket in which DistributedDataParallel reduces gradients: it has no name, and is as large as its buckets."""
    KV_CACHE = 12
    """Keys and values of attention that a layer or a cache object holds for the tokens to come."""


BATCH = (Role.INPUT, Role.ARGUMENT)
"""Roles that the batch may have."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownStorages:
    """Observations in time order, columns [H].

    A storage that several tensors share appears once per observation; a bucket that Python holds, as both.
    A row whose role is IDLE is no storage.
    """

    time_ns: PerObservation[Int]
    address: PerObservation[Int]
    size_bytes: PerObservation[Int]
    role: PerObservation[Int]
    name: PerObservation[Int]
    """Index in `names`."""
    device: PerObservation[Int]
    """Index in `devices`."""
    names: tuple[str, ...]
    devices: tuple[str, ...]
    ends_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """[Z] When storages that a walk had found, and inputs, were let go, in order of time."""
    ends_address: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    ends_device: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """[Z] Index in `devices`."""
    walks_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """[W] Times of the observations that took in every tensor that Python could reach."""
    asleep_address: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """[Y] Pieces of memory that torch counts and an engine that sleeps has unmapped from their device."""
    asleep_size_bytes: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    asleep_device: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """[Y] Index in `devices`."""
    asleep_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    awake_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """[Y] When each was mapped again."""
    threads: tuple[str, ...] = ()
    """Other threads that called the model: the profiler does not record them."""
    lines: Mapping[str, SourceLine] = field(default_factory=lambda: MappingProxyType({}))
    """The user's lines that made parameters, buffers and optimizer state, by name."""

    def __post_init__(self) -> None:
        columns = (self.time_ns, self.address, self.size_bytes, self.role, self.name, self.device)
        ends = (self.ends_ns, self.ends_address, self.ends_device)
        asleep = (self.asleep_address, self.asleep_size_bytes, self.asleep_device, self.asleep_ns, self.awake_ns)
        if any(len({len(column) for column in of_table}) > 1 for of_table in (columns, ends, asleep)):
            raise ValueError("columns of KnownStorages differ in length")

    @classmethod
    def empty(cls) -> Self:
        """Nothing was observed."""
        none = np.empty(0, np.int64)
        return cls(none, none, none, none, none, none, names=(), devices=())


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a model."""

    name: str  # Dotted, the first of its names if it is shared
    size_bytes: int  # Bytes of its elements
    wants_gradient: bool  # Whether autograd computes one
    module: str  # Dotted name of the module that owns it, "" for the model itself
    lines: tuple[SourceLine, ...]  # The lines that constructed it, innermost first; empty where that is not known
