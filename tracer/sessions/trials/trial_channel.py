"""How a process is asked for trials, and says that one has ended; without torch, which who asks need not load."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """A trial of the script with changes, and how it is made."""

    changes: tuple[str, ...]  # Their names
    folder: str  # It leaves its answer there
    arguments: tuple[str, ...] = ()  # Behind the script's own
    is_limited: bool = True  # Whether memory ends where the card's does, or never
    is_explained: bool = False  # Whether it also leaves the allocator's history where memory runs out, or grows

    @property
    def text(self) -> str:
        """One line, without its end."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str | bytes) -> Self:
        """Read one that `text` has written."""
        values = json.loads(text)
        return cls(**{**values, "changes": tuple(values["changes"]), "arguments": tuple(values["arguments"])})


def answer_name(rank: int) -> str:
    """File in the request's folder that a rank leaves in the end; a script of one process is rank 0."""
    return f"{rank}.json"


def history_name(rank: int) -> str:
    """The same of the allocator's history, where that is asked for and there is any."""
    return f"{rank}.pickle"


@dataclass(frozen=True, slots=True)
class Channel:
    """The side that is asked."""

    requests: int  # A pipe's end to read from
    replies: int  # A pipe's end to write to

    def next(self) -> TrialRequest | None:
        """The next request, when it comes; None where no more will come."""
        line = bytearray()
        while not line.endswith(b"\n"):
            part = os.read(self.requests, 1)  # a byte at a time: what is behind the line stays for who comes next
            if not part:
                return None
            line += part
        return TrialRequest.of(bytes(line))

    def has_ended(self) -> None:
        """Say that the trial which was asked for last has ended."""
        os.write(self.replies, b"\n")

    def close(self) -> None:
        """Leave it to other processes."""
        os.close(self.requests)
        os.close(self.replies)
