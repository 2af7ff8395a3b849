"""Messages of ranks through the process group's own store, while it lives: nodes need no common folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, Self, TypeVar

ANSWER_S: Final = 5.0
"""How long the store may take. One whose host is gone may never answer, and nobody waits for it any longer then."""
_Answer = TypeVar("_Answer")


class RankStore:
    """A connection of its own to the process group's store: the program's use of it is not held up.

    The store is another process's, which may die at any moment. What fails or is late ends its use, and what ranks have
    left in files is all there is.
    """

    def __init__(self, connect: Callable[[], Any], run: str) -> None:
        """Connect to the store, within a time limit.

        Args:
            connect: Returns a store as of torch.distributed, or None.
            run: Name of this start of the program, see `Rank.run`.
        """
        self._prefix = f"torch-timeline/{run}"
        self.is_alive = True  # Whether everything that was asked of it so far was answered
        self._store: Any = self._in_time(connect, None)
        self.is_alive = self._store is not None

    @classmethod
    def of_process_group(cls, run: str) -> Self | None:
        """The one of this process's group; None where there is none, or its store cannot be reached."""
        from tracer.capture.torch_private import torch_distributed  # torch: the command that starts ranks needs none

        store = cls(torch_distributed.process_group_store, run)
        return store if store.is_alive else None

    def leave(self, index: int, text: str) -> None:
        """Store one rank's text where all ranks find it; it replaces an earlier one."""
        self._in_time(lambda: self._store.set(self._key(index), text), None)

    def read(self, indices: Iterable[int]) -> dict[int, str]:
        """Return the texts of these ranks, by rank; a rank without one is missing."""

        def work() -> dict[int, str]:
            keys = {index: self._key(index) for index in indices}
            return {index: self._store.get(key).decode() for index, key in keys.items() if self._store.check([key])}

        return self._in_time(work, {})

    def _key(self, index: int) -> str:
        return f"{self._prefix}/rank{index}"

    def _in_time(self, work: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        """Call in a thread that may be left behind: a call into the store cannot be given up."""
        if not self.is_alive:
            return otherwise
        answers: list[_Answer] = []

        def run() -> None:
            # Whatever the store raises says that it cannot be used: its kinds of errors differ by backend and version.
            try:
                answers.append(work())
            except Exception:
                self.is_alive = False

        thread = threading.Thread(target=run, daemon=True, name="torch-timeline store")
        thread.start()
        thread.join(ANSWER_S)
        if not answers:
            self.is_alive = False
            return otherwise
        return answers[0]
