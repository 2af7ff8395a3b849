"""Which of NVIDIA's functions the wheels of an environment call, and whether the null GPU has them.

    ENVIRONMENT/bin/python -m benchmarks.wanted_symbols

ENVIRONMENT has torch, this package and what is to be read: vLLM, SGLang, bitsandbytes and so on. Libraries are read,
not loaded. What a program looks up by name while it runs is not seen.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from tracer.null_gpu.build import library, torch_folder
from tracer.null_gpu.torch_symbols import NVIDIA_FUNCTION, read_library

_NVIDIAS = {"nvidia", "cuda", "triton"}
"""Packages of NVIDIA's own libraries, and Triton's tools, which are no users of them."""


def wanted_by_package(packages: Path) -> dict[str, set[str]]:
    """Return the functions of NVIDIA's that each package calls and does not define itself."""
    wanted, defined = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for path in packages.rglob("*.so*"):
        package = path.relative_to(packages).parts[0]
        if package in _NVIDIAS or (found := read_library(path)) is None:
            continue
        wanted[package] |= set(filter(NVIDIA_FUNCTION.match, found.undefined))
        defined[package] |= found.defined
    return {package: left for package, names in sorted(wanted.items()) if (left := names - defined[package])}


def main() -> None:
    """Print a row for each package, with the functions that the null GPU lacks."""
    folder = torch_folder()
    built = read_library(library(folder))
    assert built is not None
    print("| package | functions | missing |\n| --- | ---: | --- |")
    for package, names in wanted_by_package(folder.parent).items():
        missing = sorted(names - built.defined)
        print(f"| {package} | {len(names)} | {len(missing)}: {', '.join(missing)} |")


if __name__ == "__main__":
    main()
