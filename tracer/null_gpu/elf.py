"""What a shared library asks for, read from its ELF tables: libraries that it needs, symbols that it lacks."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ENTRY = struct.Struct("<QQ")
_STRINGS, _DYNAMIC, _SYMBOLS = 3, 6, 11
_NEEDED = 1


@dataclass(frozen=True, slots=True)
class SharedLibrary:
    """Parts of a library that the dynamic linker reads."""

    needed: tuple[str, ...] = ()  # SONAMEs of the libraries that it needs
    undefined: frozenset[str] = frozenset()  # Symbols that others must define
    defined: frozenset[str] = frozenset()  # Symbols that it defines
    sections: tuple[str, ...] = ()  # Names of its sections


def read_section(path: Path, name: str, most: int) -> bytes:
    """Return the first bytes of a section; none if the file is no such library or has no such section."""
    library = read_library(path) if path.is_file() else None
    if library is None or name not in library.sections:
        return b""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        header = _headers(data)[library.sections.index(name)]
        return data[header[4] : header[4] + min(header[5], most)]


def read_library(path: Path) -> SharedLibrary | None:
    """A library's tables, or None for a file that is not a 64-bit little-endian ELF file.

    Source:
        The layout of /usr/include/elf.h: Elf64_Ehdr, Elf64_Shdr, Elf64_Sym, Elf64_Dyn.
    """
    with path.open("rb") as file:
        if file.read(6) != b"\x7fELF\x02\x01":
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read(data)
            except (struct.error, IndexError, OverflowError, ValueError):
                return None


def _headers(data: mmap.mmap) -> list[tuple[int, ...]]:
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    return [_SECTION.unpack_from(data, offset + index * size) for index in range(count)]


def _read(data: mmap.mmap) -> SharedLibrary:
    (names_index,) = struct.unpack_from("<H", data, 0x3E)
    headers = _headers(data)
    tables = {header[1]: header for header in headers if header[1] in {_DYNAMIC, _SYMBOLS}}

    def content(header: tuple[int, ...]) -> bytes:
        return data[header[4] : header[4] + header[5]]

    names = content(headers[names_index]) if headers else b""
    sections = tuple(_string(names, header[0]) for header in headers)
    needed: tuple[str, ...] = ()
    if _DYNAMIC in tables:
        strings = content(headers[tables[_DYNAMIC][6]])
        entries = _ENTRY.iter_unpack(content(tables[_DYNAMIC]))
        needed = tuple(_string(strings, value) for tag, value in entries if tag == _NEEDED)
    names_of: dict[bool, set[str]] = {True: set(), False: set()}
    if _SYMBOLS in tables:
        strings = content(headers[tables[_SYMBOLS][6]])
        for name, _, _, section, _, _ in _SYMBOL.iter_unpack(content(tables[_SYMBOLS])):
            names_of[section != 0].add(_string(strings, name))
    return SharedLibrary(needed, frozenset(names_of[False] - {""}), frozenset(names_of[True] - {""}), sections)


def _string(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode("utf-8", "replace")
