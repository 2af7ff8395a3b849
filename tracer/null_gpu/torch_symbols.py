"""The symbols that NVIDIA's libraries must define for torch, from ELF tables, and what headers declare of them.

Every prototype is exported, so that a library which wants more than torch does can be loaded. A function that only
computes has nothing to do and succeeds. One that gives something back through a pointer answers where the name says
what (a handle, a size); else it fails with "not supported", and the log has a line.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterable, Mapping
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
    """Read which symbols an installed torch wants of NVIDIA's libraries; torch itself is not imported."""
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
    return {match.decode("ascii") for match in _LOOKED_UP.findall(path.read_bytes())}


def _of_triton(path: Path) -> set[str]:
    """Triton compiles its driver's C file against libcuda when it is first used."""
    if not path.is_file():
        return set()
    called: Iterable[str] = re.findall(r"\bcu[A-Z]\w+(?=\()", path.read_text("utf-8"))
    return {name for name in called if not name.endswith("_t")}


HEADERS = (
    *("cuda_runtime_api.h", "cuda.h", "cublas_v2.h", "cublasLt.h", "cublasXt.h", "cusolverDn.h", "cusolverSp.h"),
    *("cusparse.h", "cufftXt.h", "cudnn.h", "nvrtc.h", "cupti.h", "nccl.h", "cufile.h", "cusparseLt.h", "nvJitLink.h"),
)
"""Headers of CUDA and its libraries; missing ones are passed over."""

_PREFIXES = r"cuda|cu|cublas|cudnn|cufft|cusolver|cusparse|nccl|nvrtc|cupti|nvJitLink"
_PROTOTYPE = re.compile(rf"([\w][\w\s*]*?[\s*])((?:{_PREFIXES})[A-Z]\w*)\s*\(((?:[^();{{}}]|\([^();{{}}]*\))*)\)\s*;")
_NOT_A_PARAMETER_TYPE = re.compile(r"\b(float|double|half|__half|cuComplex|cuDoubleComplex)\b[^*]*$")
# libcudart and libcuda keep the books of memory, streams and graphs: what is not written there would be wrong there.
_KEEPS_BOOKS = re.compile(r"(cuda[A-Z]|cu[A-Z]|cupti)")
_HANDLE = re.compile(r"(_t|_v2|Handle|Info|Algo|Desc|Opaque)\s*\*\s*\w*$|_t\s*\*")
_MULTIPLIES = re.compile(r"cublas[A-Z]?[gG]emm\w*|cublasLtMatmul")
_SIZE = re.compile(r"size|bytes|lwork|nnz|buffersize", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Prototype:
    """The declaration of a function in a header."""

    name: str  # Its name
    result: str  # The type that it returns
    parameters: tuple[str, ...]  # Each with type and name, as written


def read_prototypes(preprocessed: str) -> dict[str, Prototype]:
    """The functions that preprocessed headers declare, by name."""
    text = re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)", "", preprocessed)
    text = re.sub(r"\b__inline__\b|\bextern\b", "", text)
    prototypes = {}
    for match in _PROTOTYPE.finditer(text):
        result, name = " ".join(match[1].split()), match[2]
        if "typedef" not in result.split() and "static" not in result.split() and "return" not in result.split():
            parameters = tuple(" ".join(part.split()) for part in _split(match[3]))
            prototypes[name] = Prototype(name, result, () if parameters == ("void",) else parameters)
    return prototypes


def _split(parameters: str) -> Iterable[str]:
    depth, start = 0, 0
    for at, letter in enumerate(parameters):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            yield parameters[start:at]
            start = at + 1
    if parameters[start:].strip():
        yield parameters[start:]


# Functions that do nothing and succeed; the other functions of these libraries are in sources/.
_SUCCEED = """
    cudaMemcpyToSymbol cudaMemcpyToSymbolAsync cudaSetDeviceFlags cudaDeviceReset cudaDeviceSetLimit cudaEventQuery
    cudaDeviceSetCacheConfig cudaDeviceEnablePeerAccess cudaDeviceDisablePeerAccess cudaProfilerStart cudaProfilerStop
    cudnnBackendInitialize cuDevicePrimaryCtxRelease_v2 cuCtxSynchronize cuMemSetAccess cuStreamDestroy_v2
    cuStreamWaitValue32_v2 cuEventSynchronize cuEventQuery cuLinkAddData_v2 cuLinkDestroy cuModuleUnload cuLibraryUnload
    cuKernelSetAttribute cuFuncSetAttribute cuFuncSetCacheConfig cudaFuncSetAttribute cudaFuncSetCacheConfig
    cudaLibraryUnload cudaHostRegister cudaHostUnregister cudaMemPrefetchAsync cudaMemAdvise cudaDeviceSetMemPool
    cudaMemPoolSetAccess ncclCommFinalize nvmlInit nvmlInit_v2 nvmlInitWithFlags nvmlShutdown cudaStreamDestroy
    cudaStreamAttachMemAsync cudaStreamSetAttribute cudaGraphDestroy cudaGraphLaunch cudaGraphUpload
    cudaGraphExecDestroy cudaGraphDebugDotPrint cudaGraphRetainUserObject
"""
# Functions that only return a new handle through their first parameter: modules and libraries of code, their kernels,
# graphs to be replayed. No graph is destroyed here: user objects, which keep its memory alive, are never freed.
_GIVE_HANDLE = """
    cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleGetFunction cuLibraryLoadData cuLibraryGetModule
    cuLibraryGetKernel cuKernelGetFunction cudaLibraryLoadData cudaLibraryGetKernel nvrtcCreateProgram
    cudaGraphInstantiate cudaGraphInstantiateWithFlags cudaUserObjectCreate cudaGraphConditionalHandleCreate
    cuptiSubscribe
"""


def stub_source(prototypes: Mapping[str, Prototype], wanted: Iterable[str]) -> str:
    """C that defines every prototype and every wanted name weakly: what is written by hand takes precedence."""
    gives_handle = set(_GIVE_HANDLE.split())
    called = {*wanted, *_SUCCEED.split(), *gives_handle}
    lines = [_PROLOGUE]
    for name in sorted(called | set(prototypes)):
        prototype = prototypes.get(name)
        if name in gives_handle:
            lines.append(f"STUB long {name}(void **made) {{ *made = new_handle(); return 0; }}")
        else:
            lines.append(_undeclared(name) if prototype is None else _declared(prototype, name in called))
    return "\n".join(lines) + "\n"


_PROLOGUE = """#include <stddef.h>
#include <stdint.h>
#define STUB __attribute__((weak, visibility("default")))
long null_gpu_unwritten(const char *name);
void null_gpu_multiplied(const char *name, void *stream);
void *new_handle(void);
static char opaque[65536];
"""


def _undeclared(name: str) -> str:
    return f"STUB long {name}(void) {{ return 0; }}"


def _declared(prototype: Prototype, is_called: bool) -> str:
    """The C code of a stub. Each argument is taken as one 64 bit integer register, whatever its type."""
    name = prototype.name
    if any(_NOT_A_PARAMETER_TYPE.search(parameter) for parameter in prototype.parameters):
        return _undeclared(name) if is_called or not _KEEPS_BOOKS.match(name) else _unwritten(name)
    answers, is_understood = [], True
    for index, parameter in enumerate(prototype.parameters):
        if (answer := _answer(prototype, index, parameter)) is not None:
            answers.append(answer)
        elif _is_output(parameter):
            is_understood = False
    if not is_called and (_KEEPS_BOOKS.match(name) or not is_understood):
        return _unwritten(name)
    arguments = ", ".join(f"void *p{index}" for index in range(len(prototype.parameters))) or "void"
    if _MULTIPLIES.fullmatch(name):
        # cublasLt takes the stream as its last argument, cuBLAS's handle has it in front (blas.c).
        stream = f"p{len(prototype.parameters) - 1}" if name == "cublasLtMatmul" else "*(void **)p0"
        answers.append(f'null_gpu_multiplied("{name}", {stream});')
    return f"STUB long {name}({arguments}) {{ {' '.join([*answers, 'return 0;'])} }}"


def _unwritten(name: str) -> str:
    return f'STUB long {name}(void) {{ return null_gpu_unwritten("{name}"); }}'


def _answer(prototype: Prototype, index: int, parameter: str) -> str | None:
    """Return the value that is written through an output parameter; None for other parameters and unknown ones."""
    if "const" in parameter or not _is_output(parameter):
        return None
    if re.search(r"\bsize_t\s*\*", parameter) and _SIZE.search(parameter):
        return f"if (p{index}) *(size_t *)p{index} = 0;"
    if re.search(r"\bint(32_t|64_t)?\s*\*\s*\w*(lwork|size|nnz)", parameter, re.IGNORECASE):
        return f"if (p{index}) *(int *)p{index} = 1;"
    if "Create" in prototype.name and index in {0, len(prototype.parameters) - 1} and _HANDLE.search(parameter):
        return f"if (p{index}) *(void **)p{index} = opaque;"
    return None


def _is_output(parameter: str) -> bool:
    """Return True if a parameter may point to host memory that the caller reads: device data is void, float, ..."""
    if "const" in parameter or "*" not in parameter:
        return False
    return re.match(r"(void|float|double|cu\w*Complex|__half|__nv_bfloat16|char)\s*\*\s*\w*$", parameter) is None
