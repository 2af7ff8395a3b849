"""How this process was called."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def this_command() -> str:
    """The command line, without the folder of the program, as a shell takes it."""
    program = Path(sys.argv[0])
    words = ["python", "-m", program.parent.name] if program.name == "__main__.py" else [program.name]
    return shlex.join([*words, *sys.argv[1:]])
