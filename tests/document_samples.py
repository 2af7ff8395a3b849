"""The samples of output in the documents, made from the commands that print them.

A sample is a block of code behind a comment such as `<!-- printed by: torch-timeline --n-modes 16 -->`. A line `...` in
it stands for lines that are left out. `python -m tests.document_samples` writes them anew; where an output has become
longer or shorter, the lines of the sample are a matter for a person.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.processes import run_python

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RECORDINGS = ROOT.parent / "shared/realdata"
_SAMPLE = re.compile(r"<!-- printed by: (?P<command>.*?)(?:, of (?P<recording>\S+))? -->\n```\n(?P<text>.*?)```", re.S)
_LEFT_OUT = "..."
WIDTH = 100


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample.

    Attributes:
        document: Where it stands.
        command: As the document has it.
        recording: The real recording that stands for `memory_snapshot.pkl`; None for a command without one.
        parts: Lines that follow each other, and what follows behind something left out.
    """

    document: Path
    command: str
    recording: Path | None
    parts: tuple[tuple[str, ...], ...]


def samples() -> Iterator[Sample]:
    """Yield the samples of all documents, in their order."""
    for document in DOCUMENTS:
        for match in _SAMPLE.finditer(document.read_text(encoding="utf-8")):
            recording = RECORDINGS / match["recording"] if match["recording"] else None
            yield Sample(document, match["command"], recording, _parts(match["text"]))


def _parts(text: str) -> tuple[tuple[str, ...], ...]:
    parts: list[list[str]] = [[]]
    for line in text.splitlines():
        if line == _LEFT_OUT:
            parts.append([])
        else:
            parts[-1].append(line)
    return tuple(map(tuple, parts))


def printed(sample: Sample, folder: Path) -> list[str]:
    """Run the command; return the lines that it prints into a file."""
    words = ["main.py", *shlex.split(sample.command.removeprefix("torch-timeline"))]
    words = [str(sample.recording) if word == "memory_snapshot.pkl" else word for word in words]
    if sample.recording is None:
        behind = 2 if words[1] == "run" else len(words)  # what follows a script's name is the script's
        words[behind:behind] = ["--save-dir", str(folder)]
    # oneDNN takes workspaces for each thread.
    variables = {**os.environ, "COLUMNS": str(WIDTH), "OMP_NUM_THREADS": "2"}
    done = run_python(*words, folder=ROOT, variables=variables)
    assert done.stdout, done.stderr  # a program that runs out of memory ends with 1
    return [line.rstrip() for line in done.stdout.splitlines()]


def place_of(part: tuple[str, ...], lines: list[str]) -> int:
    """Find the line at which a part begins in the output, by the words of its first line; -1 if nowhere."""
    words = [_words(line) for line in lines]
    return words.index(_words(part[0])) if part and _words(part[0]) in words else -1


def _words(line: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[A-Za-z_]{2,}", line))


def _write() -> None:
    import tempfile

    for sample in samples():
        if sample.recording is not None and not sample.recording.exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            lines = printed(sample, Path(folder))
        made = [lines[(at := place_of(part, lines)) : at + len(part)] for part in sample.parts]
        before = f"\n{_LEFT_OUT}\n".join("\n".join(part) for part in sample.parts)
        after = f"\n{_LEFT_OUT}\n".join("\n".join(part) for part in made)
        text = sample.document.read_text(encoding="utf-8")
        assert before in text
        sample.document.write_text(text.replace(before, after), encoding="utf-8")


if __name__ == "__main__":
    _write()
