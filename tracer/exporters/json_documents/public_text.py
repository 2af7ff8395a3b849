"""Text about this machine without folders, tokens, allocator settings that torch does not know, users and hosts."""

from __future__ import annotations

import getpass
import os
import platform
import re
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tracer.allocator.settings import ALLOCATOR_VARIABLES, parse_settings
from tracer.errors import SettingsError

OTHER = "<other>"
"""Stands for a value of a variable that is none of those that NVIDIA's or torch's documents list."""
_LISTED_VALUES = {
    "CUDA_VISIBLE_DEVICES": r"[\d,\s-]*",
    "CUDA_DEVICE_ORDER": "FASTEST_FIRST|PCI_BUS_ID",
    "CUDA_LAUNCH_BLOCKING": "[01]",
    "CUDA_MODULE_LOADING": "DEFAULT|EAGER|LAZY",
    "CUDA_DEVICE_MAX_CONNECTIONS": r"\d+",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": r"\d+",
    "CUBLAS_WORKSPACE_CONFIG": r"(:\d+:\d+)+",
    "CUBLASLT_WORKSPACE_SIZE": r"\d+",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": r"\w{,5}",
}
"""Variables of CUDA and torch that change memory, and their values (CUDA C++ Programming Guide, cuBLAS, torch)."""
_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]((?:torch|triton|nvidia|numpy)[/\\].*)")
_SYSTEM = re.compile(r"/(?:usr/)?(?:lib|lib64|bin)/|/usr/local/cuda[-.\d]*/|/proc/|/sys/")
_CACHE = "/.cache/torch-timeline"
_CUDA_LIBRARY = re.compile(r"[/\\](lib(?:cu|nv|nccl)\w*(?:-[0-9a-f]+)?\.so[.\d]*)$")
_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F]{8}[0-9a-fA-F-]*")
_QUOTED = r"'[^'\n]*[/\\][^'\n]*'|\"[^\"\n]*[/\\][^\"\n]*\""
_ENDS = r"\s'\":;,()\[\]"
_SECRET = re.compile("TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH|COOKIE")
_SHORTEST = 2
"""Shorter names of users and hosts, and shorter secrets, stand in ordinary words."""


def public(value: Any) -> Any:
    """Return a value for JSON with every text in it made public; keys are the program's own."""
    if isinstance(value, str):
        return _public_text(value)
    if isinstance(value, Mapping):
        return {key: public(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [public(each) for each in value]
    return value


def public_environment() -> dict[str, str]:
    """Return the variables that change memory; a value that is not one of the documented is `<other>`."""
    found = {name: value for name in _LISTED_VALUES if (value := os.environ.get(name)) is not None}
    found = {name: value if re.fullmatch(_LISTED_VALUES[name], value) else OTHER for name, value in found.items()}
    settings = {name: value for name in ALLOCATOR_VARIABLES if (value := os.environ.get(name)) is not None}
    return found | {name: value if _are_settings(value) else OTHER for name, value in settings.items()}


def _are_settings(text: str) -> bool:
    """Return whether torch's allocator takes a text: its settings have numbers and fixed words alone as values."""
    try:
        parse_settings(re.sub(r"\bbackend:cudaMallocAsync\b", "backend:native", text))
    except SettingsError:
        return False
    return True


def _public_text(text: str) -> str:
    for word, replacement in _private_words():
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", replacement, text)
    text = _UUID.sub(r"\1-<number>", _paths().sub(lambda match: _public_path(match[0]), text))
    for name, replacement in _names():
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", replacement, text, flags=re.IGNORECASE)
    return text


def _private_words() -> list[tuple[str, str]]:
    """Return secrets of the environment and parts of allocator settings that torch does not know, longest first."""
    words = {value: "<left out>" for name, value in os.environ.items() if _SECRET.search(name.upper())}
    for name in ALLOCATOR_VARIABLES:
        if (value := os.environ.get(name)) and not _are_settings(value):
            known = {"backend", "cudaMallocAsync", "True", "False"}
            parts = {part for part in re.split(r"[\s,:\[\]]+", value) if part not in known and not part.isdigit()}
            words |= dict.fromkeys([value, re.sub(r"\s", "", value), *parts], OTHER)
    return sorted(((word, by) for word, by in words.items() if len(word) > _SHORTEST), key=lambda pair: -len(pair[0]))


# --------------------------------------------------------------------------------------------------------------- paths
def _paths() -> re.Pattern[str]:
    """Match every absolute path; folders of this machine are known, so that spaces in them do not end a path."""
    known = sorted((re.escape(folder) for folder in set(_folders())), key=len, reverse=True)
    rest = rf"(?:[\\/][^{_ENDS}]*)?(?=$|[{_ENDS}])"
    anywhere = rf"(?<![\w.>~])(?:[A-Za-z]:)?[\\/][^{_ENDS}]+"
    return re.compile("|".join([*(f"{folder}{rest}" for folder in known), _QUOTED, anywhere]))


def _folders() -> Iterator[str]:
    """Yield folders of this machine: the working folder, the home, Python's, and those that variables name."""
    folders = [str(Path.home()), str(Path.cwd()), tempfile.gettempdir(), sys.prefix, sys.base_prefix, *sys.path]
    for value in os.environ.values():
        folders += [value, *value.split(os.pathsep)]
    for folder in folders:
        stripped = folder.rstrip("/\\")
        if len(stripped) > _SHORTEST and re.search(r"[/\\]", stripped) and not _SYSTEM.match(f"{stripped}/"):
            yield stripped


def _public_path(path: str) -> str:
    """Return a path below its package or the system's folders, else `<path>`, of CUDA's libraries with the name.

    `/home/jane/env/lib/python3.11/site-packages/torch/cuda/memory.py` is `torch/cuda/memory.py`.
    """
    quote = path[0] if path[0] in "'\"" else ""
    path = path.strip("'\"")
    ours, home = f"{Path(__file__).parents[2]}{os.sep}", str(Path.home())
    if path.startswith(ours):
        shown = f"tracer/{path.removeprefix(ours)}"
    elif (packages := _PACKAGES.match(path)) is not None:
        shown = packages[1]
    elif path.startswith(f"{home}{_CACHE}"):
        shown = f"~{path.removeprefix(home)}"
    elif _SYSTEM.match(path):
        shown = path
    else:
        library = _CUDA_LIBRARY.search(path)
        shown = f"<path>/{library[1]}" if library else "<path>"
    return f"{quote}{shown}{quote}"


# --------------------------------------------------------------------------------------------------- users and hosts
def _names() -> Iterator[tuple[str, str]]:
    yield from ((name, "<user>") for name in _distinct(_users()) if name != "root")
    yield from ((name, "<host>") for name in _distinct(_hosts()) if name != "localhost")


def _distinct(names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if len(name) >= _SHORTEST}, key=len, reverse=True)


def _users() -> Iterator[str]:
    yield from (os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER"))
    yield Path.home().name
    try:
        yield getpass.getuser()
    except (KeyError, OSError):  # a container's number without a name
        return


def _hosts() -> Iterator[str]:
    for name in (socket.gethostname(), platform.node(), os.environ.get("HOSTNAME", "")):
        yield from (name, name.partition(".")[0])
