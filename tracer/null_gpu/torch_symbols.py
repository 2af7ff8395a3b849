"""The libraries of NVIDIA that torch loads, and the symbols that they must define, read from ELF tables."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ENTRY = struct.Struct("<QQ")
_DYNAMIC, _SYMBOLS = 6, 11
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


# Loaded by name at run time, by torch and by Triton: nobody's table of needed libraries has them.
_LOADED_BY_NAME = ("libcuda.so.1", "libnvidia-ml.so.1")
# auditwheel renames what it copies into a wheel: torchvision's has a libcudart.faf08d9a.so.13.
_SONAME = re.compile(
    r"lib(cudart|cublas|cublasLt|cudnn|cufft|cusolver|cusparse|cusparseLt|cufile|nccl|nvrtc|nvshmem_host|cupti|nvJitLink)"
    r"([.-][0-9a-f]{8})?\.so"
)
NVIDIA_FUNCTION = re.compile(
    r"(cu[A-Z]|cuda[A-Z]|__cuda|cudnn|cublas|cufft|cusolver|cusparse|nccl|nvrtc|nvshmem|cupti|nvml|nvJitLink)\w*$"
)
# Names that torch hands to dlsym or cudaGetDriverEntryPoint stand among the strings of the one library that does so.
_LOOKS_UP = "libc10_cuda.so"
_LOOKED_UP = re.compile(rb"\0((?:cu[A-Z]|nvml[A-Z])[A-Za-z0-9_]{3,60})(?=\0)")
# Magic, version, size of the header and of what follows; of an entry kind, version, header's size, size and so on, and
# last the architecture (sources/kernels.c has the same).
_FAT_HEADER, _FAT_ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQIIHHI")
_KNOWN_HEADER = (0xBA55ED50, 1, 16)
_TRITON_DRIVER = "triton/backends/nvidia/driver.c"


@dataclass(frozen=True, slots=True)
class TorchSymbols:
    """Variables that must be there before torch is loaded."""

    sonames: tuple[str, ...]  # NVIDIA's libraries, by the names that the dynamic linker knows them by
    names: frozenset[str]  # Functions that are called


def torch_symbols(torch_folder: Path) -> TorchSymbols:
    """What an installed torch wants of NVIDIA's libraries; torch itself is not imported."""
    packages = torch_folder.parent
    sonames, names = set(_LOADED_BY_NAME), set[str]()
    for path in sorted([*(torch_folder / "lib").glob("*.so"), *packages.glob("torchvision/*.so")]):
        if (library := read_library(path)) is not None:
            sonames |= {name for name in library.needed if _SONAME.match(name)}
            names |= {name for name in library.undefined if NVIDIA_FUNCTION.match(name)}
    names |= _looked_up(torch_folder / "lib" / _LOOKS_UP) | _of_triton(packages / _TRITON_DRIVER)
    return TorchSymbols(tuple(sorted(sonames)), frozenset(names))


def other_fat_binaries(torch_folder: Path) -> str | None:
    """Return a sentence if libtorch_cuda.so has fat binaries of a layout that sources/kernels.c does not read."""
    begin = read_section(torch_folder / "lib" / "libtorch_cuda.so", ".nv_fatbin", _FAT_HEADER.size + _FAT_ENTRY.size)
    if len(begin) < _FAT_HEADER.size + _FAT_ENTRY.size:
        return None  # of a torch for the CPU, or with all code elsewhere
    magic, version, size, _ = _FAT_HEADER.unpack_from(begin)
    kind, _, entry_size, *_, architecture = _FAT_ENTRY.unpack_from(begin, _FAT_HEADER.size)
    is_known = (magic, version, size) == _KNOWN_HEADER and kind in (1, 2) and entry_size >= _FAT_ENTRY.size
    if is_known and 50 <= architecture < 1000:
        return None
    return (
        "the fat binaries of libtorch_cuda.so (section .nv_fatbin) have another layout than those of torch 2.11 to "
        "2.15: the scratch memory of CUB's kernels may be another one than on the card."
    )


def _looked_up(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    return {_text(match) for match in _LOOKED_UP.findall(path.read_bytes())}


def _of_triton(path: Path) -> set[str]:
    """Triton compiles its driver's C file against libcuda when it is first used."""
    if not path.is_file():
        return set()
    called: Iterable[str] = re.findall(r"\bcu[A-Z]\w+(?=\()", path.read_text("utf-8"))
    return {name for name in called if not name.endswith("_t")}


def _text(name: bytes) -> str:
    return name.decode("ascii")
