"""Which of the libraries is installed whose Adam keeps its state in 8 bits; without loading one of them, or torch."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("bitsandbytes", "torchao")
"""In the order in which they are taken: bitsandbytes compiles nothing."""
NOT_INSTALLED = "neither bitsandbytes nor torchao is installed"


def installed_version(package: str) -> str:
    """Version of a package, or nothing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def installed_packages() -> tuple[str, ...]:
    """Those that are installed."""
    return tuple(package for package in PACKAGES if installed_version(package))
