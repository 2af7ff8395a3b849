"""A rank that runs alone may need what an earlier one says of shapes: it asks the job's command to run that one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Final

_OFFERED, _ASKED, _DONE = "earlier.offered", "earlier.asked", "earlier.done"
_POLL_S: Final = 0.1


@contextmanager
def earlier_ranks_by(run: Callable[[], None], folder: Path) -> Iterator[None]:
    """Meanwhile a rank of the job can ask, once, for ranks before it.

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
    """Whether a rank waits for earlier ones, which have not run yet."""
    return (folder / _ASKED).exists() and not (folder / _DONE).exists()
