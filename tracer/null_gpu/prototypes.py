"""What NVIDIA's headers declare, and what a function that nobody wrote by hand answers.

Every prototype is exported, so that a library which wants more than torch does can be loaded. A function that only
computes has nothing to do and succeeds. One that gives something back through a pointer answers where the name says
what (a handle, a size); else it fails with "not supported", and the log has a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HEADERS = (
    *("cuda_runtime_api.h", "cuda.h", "cublas_v2.h", "cublasLt.h", "cublasXt.h", "cusolverDn.h", "cusolverSp.h"),
    *("cusparse.h", "cufftXt.h", "cudnn.h", "nvrtc.h", "cupti.h", "nccl.h", "cufile.h", "cusparseLt.h", "nvJitLink.h"),
)
"""Those that are there are read."""

_PREFIXES = r"cuda|cu|cublas|cudnn|cufft|cusolver|cusparse|nccl|nvrtc|cupti|nvJitLink"
_PROTOTYPE = re.compile(rf"([\w][\w\s*]*?[\s*])((?:{_PREFIXES})[A-Z]\w*)\s*\(((?:[^();{{}}]|\([^();{{}}]*\))*)\)\s*;")
_NOT_A_PARAMETER_TYPE = re.compile(r"\b(float|double|half|__half|cuComplex|cuDoubleComplex)\b[^*]*$")
# libcudart and libcuda keep the books of memory, streams and graphs: what is not written there would be wrong there.
_KEEPS_BOOKS = re.compile(r"(cuda[A-Z]|cu[A-Z]|cupti)")
_HANDLE = re.compile(r"(_t|_v2|Handle|Info|Algo|Desc|Opaque)\s*\*\s*\w*$|_t\s*\*")
_MULTIPLIES = re.compile(r"cublas[A-Z]?[gG]emm\w*|cublasLtMatmul")
_RETURNS_TO_DEVICE = re.compile(r"cublas(?!Lt)|cusolver|cusparse(?!Lt)")
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


def stub_source(prototypes: Mapping[str, Prototype], wanted: Iterable[str]) -> str:
    """C that defines every prototype and every wanted name weakly: what is written by hand takes precedence."""
    called = set(wanted)
    lines = [_PROLOGUE]
    for name in sorted(called | set(prototypes)):
        prototype = prototypes.get(name)
        lines.append(_undeclared(name) if prototype is None else _declared(prototype, name in called))
    return "\n".join(lines) + "\n"


def unanswered(prototypes: Mapping[str, Prototype], called: Iterable[str]) -> frozenset[str]:
    """Return the called functions that return something to the host, of which nothing is known: it stays unset.

    cuBLAS's, cuSOLVER's and cuSPARSE's return to the device, but for sizes.
    """
    known = (prototypes[name] for name in called if name in prototypes and not _RETURNS_TO_DEVICE.match(name))
    return frozenset(prototype.name for prototype in known if any(_is_unset(prototype)))


def _is_unset(prototype: Prototype) -> Iterable[bool]:
    for index, parameter in enumerate(prototype.parameters):
        yield _is_output(parameter) and _answer(prototype, index, parameter) is None


_PROLOGUE = """#include <stddef.h>
#include <stdint.h>
#define STUB __attribute__((weak, visibility("default")))
long null_gpu_unwritten(const char *name);
void null_gpu_multiplied(const char *name, void *stream);
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
    """What is written through an output parameter, or None for one that is none or that nothing is known of."""
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
    """Whether it may point to something of the host's that the caller reads: data of the device is void, float, ..."""
    if "const" in parameter or "*" not in parameter:
        return False
    return re.match(r"(void|float|double|cu\w*Complex|__half|__nv_bfloat16|char)\s*\*\s*\w*$", parameter) is None
