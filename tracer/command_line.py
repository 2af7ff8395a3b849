"""The command of this process, its commit, and the same command again in another role."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

_ROLE: Final = "TORCH_TIMELINE_ROLE"


def this_command() -> str:
    """The command line, without the folder of the program, as a shell takes it."""
    called = sys.argv or [""]  # a program may have emptied it
    program = Path(called[0])
    words = ["python", "-m", program.parent.name] if program.name == "__main__.py" else [program.name]
    return shlex.join([*words, *called[1:]])


def program_commit() -> str:
    """Return the commit of the checkout, or that pip installed from a repository; empty where it is not known."""
    import subprocess
    from importlib import metadata

    package = Path(__file__).resolve().parent
    if (package.parent / ".git").exists():
        command = ["git", "-C", str(package.parent), "rev-parse", "HEAD"]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return ""
    try:
        installed = metadata.distribution("torch-timeline-tracer")
    except metadata.PackageNotFoundError:
        return ""
    if Path(str(installed.locate_file(package.name))).resolve() != package:
        return ""
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    return str(origin.get("vcs_info", {}).get("commit_id", ""))


def again() -> list[str]:
    """The running command, as a new process is started with it."""
    return [sys.executable, *sys.orig_argv[1:]]


def program() -> list[str]:
    """The words between `python` and the command, which start this program in any folder."""
    words = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    return [str(Path(word).resolve()) if Path(word).is_file() else word for word in words]


def replace_process(variables: Mapping[str, str]) -> NoReturn:
    """Go on as the running command with these environment variables, from its beginning."""
    flush_output()
    os.execve(sys.executable, again(), variables)


def flush_output() -> None:
    """Write out what is buffered for stdout and stderr; a program may have closed them."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not getattr(stream, "closed", False):
            with suppress(OSError):
                stream.flush()


def role(part: str) -> Any:
    """A part of the role that this process was started in; None where it has none such.

    `job` is the folder of the job that it is a rank of, `doctor` the device to train on, `trial` what `fit` asks of
    it, `child` the folder and the rank of a recorded child of the script, `program` how that child's parent was called,
    `peaks` the folder that it leaves its peak in, `engine` that of the reports of inference engines that it starts,
    `test` the file that pytest's plugin reads.
    """
    return _role().get(part)


def take_role(part: str) -> Any:
    """Return a part of the role, and take it out of the role that later processes inherit."""
    parts = _role()
    taken = parts.pop(part, None)
    os.environ[_ROLE] = json.dumps(parts)
    return taken


def in_role(**parts: object) -> dict[str, str]:
    """The environment variable of a process that has these parts beside those of this process's role."""
    return {_ROLE: json.dumps({**_role(), **parts})}


def _role() -> dict[str, Any]:
    parts: dict[str, Any] = json.loads(os.environ.get(_ROLE, "{}"))
    return parts
