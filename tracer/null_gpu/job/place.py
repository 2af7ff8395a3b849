"""A rank of a job: its number, its folder, torchrun's variables, files that it leaves, and the ranks that differ.

A rank that runs alone may need what an earlier one says of shapes: it asks the job's command to run that one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final, Self

from tracer.command_line import in_role, role

if TYPE_CHECKING:
    from tracer.null_gpu.nccl_buffers import NcclBuffers


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A process's rank in its job."""

    rank: int  # Number from 0, over all nodes
    world_size: int  # Number of ranks
    per_node: int  # Number of ranks on a node
    folder: Path  # The job's private folder, in which ranks leave what later ones read

    @classmethod
    def here(cls) -> Self | None:
        """This process's; None where it is no rank whose others do not run."""
        folder = role("job")
        if folder is None:
            return None
        names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        rank, world_size, per_node = (int(os.environ[name]) for name in names)
        return cls(rank, world_size, per_node, Path(folder))

    @property
    def local_rank(self) -> int:
        """Its number on its node."""
        return self.rank % self.per_node

    @property
    def num_local(self) -> int:
        """Number of ranks of its node."""
        return min(self.per_node, self.world_size)

    def variables(self, **parts: object) -> dict[str, str]:
        """Environment variables of torchrun, and of the role, with further parts. Nobody listens at the address."""
        node = self.rank // self.per_node
        num_nodes = -(-self.world_size // self.per_node)
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.num_local),
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": str(num_nodes),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "null-gpu",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            # Every other rank says what this one does, so that symmetric memory of all seems to be on one device.
            "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
            **in_role(job=str(self.folder), **parts),
        }


def left_by(folder: Path, rank: int) -> Path:
    """Path of the file that a rank leaves: its groups, its keys of the store, and its use of NCCL."""
    return folder / f"rank{rank}.json"


def groups_left(folder: Path, rank: int) -> list[list[int]]:
    """The ranks of each process group that a rank was in; empty if it left none."""
    groups: list[list[int]] = _left(folder, rank).get("groups", [])
    return groups


def nccl_left(folder: Path, rank: int) -> NcclBuffers:
    """Read what NCCL would have been used for in a rank that ran."""
    from tracer.null_gpu.nccl_buffers import NcclBuffers

    return NcclBuffers(**_left(folder, rank).get("nccl", {}))


def shared_bytes_left(folder: Path, rank: int) -> int:
    """The most of its memory that a rank that ran has shared with others at once; see `process.shared_bytes`."""
    return int(_left(folder, rank).get("shared_bytes", 0))


def taken_left(folder: Path, rank: int) -> dict[int, int]:
    """The most of each GPU of its node that a rank that ran has taken at once; see `process.taken_bytes`."""
    return {int(index): size for index, size in _left(folder, rank).get("taken", {}).items()}


def _left(folder: Path, rank: int) -> dict[str, Any]:
    path = left_by(folder, rank)
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return document


def ranks_that_differ(groups: Iterable[Sequence[int]], world_size: int) -> list[int]:
    """Along each dimension of the device mesh the first rank, one between and the last; and the farthest of all.

    A dimension of the mesh is a process group of the first rank: along it a rank may have another stage of a pipeline,
    or the remainder of a tensor that does not divide. What lies off these lines has the coordinates of several of them;
    the farthest rank is last on all.

    Returns:
        In ascending order; the first alone where it is in no group with others.
    """
    lines = {tuple(sorted(group)) for group in groups if len(group) > 1 and 0 in group}
    # A group that others are made of, such as the whole world beside rows and columns of a mesh, is no line of its own.
    lines = {line for line in lines if not any(_is_across(line, other, lines) for other in lines)}
    ranks = {0}
    for line in lines:
        ranks |= {line[len(line) // 2], line[-1]}
    if lines:
        ranks.add(world_size - 1)
    return sorted(ranks)


def _is_across(line: tuple[int, ...], other: tuple[int, ...], lines: set[tuple[int, ...]]) -> bool:
    """Return True if a line is the product of another line and a third that share one rank."""
    inside = [part for part in lines if set(part) < set(line)]
    return other in inside and any(
        len(set(other) & set(third)) == 1 and len(other) * len(third) == len(line) for third in inside
    )


_OFFERED, _ASKED, _DONE = "earlier.offered", "earlier.asked", "earlier.done"
_POLL_S: Final = 0.1


@contextmanager
def earlier_ranks_by(run: Callable[[], None], folder: Path) -> Iterator[None]:
    """Let a rank of the job ask, once, for ranks before it while the block runs.

    Args:
        run: Runs them; called in a thread of its own, while the rank that asked waits.
    """
    ended = Event()

    def listen() -> None:
        while not ended.wait(_POLL_S):
            if (folder / _ASKED).exists():
                try:
                    run()
                finally:
                    (folder / _DONE).touch()
                return

    (folder / _OFFERED).touch()
    thread = Thread(target=listen, name="earlier ranks")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        (folder / _OFFERED).unlink()


def run_earlier_ranks(folder: Path) -> bool:
    """Ask for ranks before this one, and wait until they have run; False where nobody is there to run them."""
    if not (folder / _OFFERED).exists():
        return False
    (folder / _ASKED).touch()
    while not (folder / _DONE).exists():
        time.sleep(_POLL_S)
    return True


def earlier_ranks_are_asked_for(folder: Path) -> bool:
    """Return True if a rank waits for earlier ones, which have not run yet."""
    return (folder / _ASKED).exists() and not (folder / _DONE).exists()
