"""How a process is asked for trials, and says that one has ended; without torch, which who asks need not load."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def request(names: Sequence[str], folder: Path) -> bytes:
    """A line that asks for a trial."""
    return json.dumps({"changes": list(names), "folder": str(folder)}).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Channel:
    """The side that is asked."""

    requests: int  # A pipe's end to read from
    replies: int  # A pipe's end to write to

    def next(self) -> dict[str, Any] | None:
        """The next request, when it comes; None where no more will come."""
        line = bytearray()
        while not line.endswith(b"\n"):
            part = os.read(self.requests, 1)  # a byte at a time: what is behind the line stays for who comes next
            if not part:
                return None
            line += part
        asked: dict[str, Any] = json.loads(line)
        return asked

    def has_ended(self) -> None:
        """Say that the trial which was asked for last has ended."""
        os.write(self.replies, b"\n")

    def close(self) -> None:
        """Leave it to other processes."""
        os.close(self.requests)
        os.close(self.replies)
