"""Files of this program, told by their paths, also in recordings that were made elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parent
_SHIPPED_MODELS: Final = "_models"
_PACKAGE_FOLDERS: Final = ("site-packages", "dist-packages")
_COMMANDS: Final = "commands"
_STARTS_SCRIPTS: Final = ("<frozen runpy>", "runpy.py")
_MOST_FILES: Final = 4096  # Remembered: millions of frames have a few hundred files


@lru_cache(maxsize=_MOST_FILES)
def is_own_file(file: str) -> bool:
    """True for a path of this program's code: its package here or anywhere, by a file of the same name inside.

    A shipped model is as good as the user's own. A file right in a folder `tracer` of someone else's is not of ours.
    """
    parts = file.replace("\\", "/").split("/")
    if ".." in parts:
        return False
    for at in range(len(parts) - 2, -1, -1):
        if parts[at] == _PACKAGE.name:
            inner = parts[at + 1 :]
            is_sure = len(inner) > 1 or at == 0 or parts[at - 1] in _PACKAGE_FOLDERS or Path(file).parent == _PACKAGE
            return inner[0] != _SHIPPED_MODELS and is_sure and _PACKAGE.joinpath(*inner).is_file()
    return False


def frames_of_program(files: Sequence[str]) -> list[int]:
    """Return the rows of a stack's frames, innermost first, without ours and without those that start the program.

    Example:
        A script that `run` started has `train.py`, `<frozen runpy>`, `tracer/commands/script.py`, and then typer's
        files in its stack: row 0 is the program's.
    """
    own = [is_own_file(file) for file in files]
    ours = (at for at, file in enumerate(files) if own[at] and _COMMANDS in file.replace("\\", "/").split("/")[:-1])
    end = next(ours, len(files))
    while 0 < end < len(files) and (own[end - 1] or files[end - 1].endswith(_STARTS_SCRIPTS)):
        end -= 1
    return [at for at in range(end) if not own[at]]
