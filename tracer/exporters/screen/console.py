"""Verbosity and destination of a command's words: one object, made of the command's options and handed down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console as RichConsole

from tracer.exporters.screen.terminal import print_json, progress_bar, say, screen

Level = Literal["full", "short", "none"]


@dataclass(frozen=True, slots=True)
class Console:
    """The screen of a command: words on stderr while it runs, and one answer on stdout.

    Width and colour are those of the terminal that stdout is, if it is one.
    """

    level: Level = "short"
    as_json: bool = False  # Whether the answer is a document
    write: Callable[[str], object] = say  # Takes each line of the words

    @classmethod
    def of(cls, *, quiet: bool = False, full: bool = False, as_json: bool = False) -> Console:
        """Return the console of a command with these options."""
        return cls("none" if quiet else "full" if full else "short", as_json)

    @classmethod
    def writing_to(cls, write: Callable[[str], object]) -> Console:
        """Return one whose lines are taken by a function."""
        return cls(write=write)

    @property
    def is_quiet(self) -> bool:
        """True if words are left out, and an answer that is no document."""
        return self.level == "none"

    @property
    def is_full(self) -> bool:
        """True if the answer is shown whole."""
        return self.level == "full"

    def say(self, *lines: str) -> None:
        """Print lines that are no error."""
        self.say_all(lines)

    def say_all(self, lines: Iterable[str]) -> None:
        """Print lines that are no error."""
        if not self.is_quiet:
            for line in lines:
                self.write(line)

    @contextmanager
    def screen(self) -> Iterator[RichConsole]:
        """The console that draws the answer; it is printed when the block ends well."""
        with screen(is_shown=self.as_json or not self.is_quiet) as console:
            yield console

    def answer(self, document: Callable[[], Mapping[str, Any]], draw: Callable[[RichConsole], object]) -> None:
        """Print the answer: a document, or what is drawn."""
        with self.screen() as console:
            if self.as_json:
                print_json(document(), console)
            else:
                draw(console)

    def progress_bar(self, words: str, *, is_counted: bool = True) -> AbstractContextManager[Callable[..., None]]:
        """A bar on stderr, where that is a terminal."""
        return progress_bar(words, is_shown=not self.is_quiet, is_counted=is_counted)


QUIET, SHORT = Console.of(quiet=True), Console.of(quiet=False)
"""The consoles of what is asked for by a program, and of a command without options on it."""
