"""doctor.json: what a bug report needs of a machine, and nothing that names a person, a host or a folder of theirs."""

from __future__ import annotations

import getpass
import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracer.exporters.files import write_json
from tracer.exporters.json_documents.header import json_header
from tracer.results.doctor import CheckResult, DoctorReport, Status

VERSION = 1
_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
_OURS = (".cache/torch-timeline",)
"""Folders below the home folder that are everybody's."""
_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F]{8}[0-9a-fA-F-]*")
_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[\\/][^\s'\"\\/:;,()\[\]]+){2,}[\\/]?")
_PUBLIC_PATHS = ("/usr/", "/lib/", "/lib64/", "/opt/", "/proc/", "/sys/", "/dev/", "/etc/")
_HOMES = re.compile(r"/(?:home|Users)/[^/\s'\":;,]+|/root(?=/|$)")
_SHORTEST_NAME = 3
"""Shorter names of users and hosts stand in ordinary words."""


def doctor_values(report: DoctorReport) -> dict[str, Any]:
    """All of it, as values for JSON; docs/files.md describes them."""
    torch = report.about.get("torch")
    header = json_header("doctor", VERSION, torch=str(torch) if torch else None, command=None, computed=report.computed)
    return {
        **header,
        "counts": {status.value: len(report.with_status(status)) for status in Status},
        "about": public(report.about),
        "installed": [_values(check) for check in report.installed],
        "works": [_values(check) for check in report.works],
    }


def doctor_json(report: DoctorReport) -> str:
    """The document as text."""
    return json.dumps(doctor_values(report), indent=1)


def write_doctor_json(report: DoctorReport, path: Path) -> None:
    """Write doctor.json."""
    write_json(path, doctor_values(report))


def _values(check: CheckResult) -> dict[str, Any]:
    outcome = check.outcome
    return {
        "name": check.name,
        "status": outcome.status.value,
        "sentence": public(outcome.sentence),
        "mend": public(outcome.mend),
        "seconds": check.seconds,
        "facts": public(outcome.facts),
    }


def public(value: Any) -> Any:
    """The same without paths of the user's, names of users and hosts, and numbers of devices."""
    if isinstance(value, str):
        return _public_text(value)
    if isinstance(value, Mapping):
        return {_public_text(str(key)): public(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [public(each) for each in value]
    return value


def _public_text(text: str) -> str:
    home = str(Path.home())
    if len(home) > 1:
        text = text.replace(home, "/home/user")
    text = _PATH.sub(lambda match: _public_path(match[0]), text)
    text = _HOMES.sub("~", text)
    text = _UUID.sub(r"\1-<number>", text)
    for name, word in ((_user(), "<user>"), *((host, "<host>") for host in _hosts())):
        if len(name) >= _SHORTEST_NAME:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", word, text)
    return text


def _public_path(path: str) -> str:
    """`~/...` for what lies below a home, the part that a package has of it, and `/.../name` for any other."""
    if (packages := _PACKAGES.match(path)) is not None:
        return path[packages.end() :]
    if (home := _HOMES.match(path)) is not None:
        rest = path[home.end() :].lstrip("/")
        return f"~/{rest}" if rest.startswith(_OURS) else "~/..."
    if "/tracer/" in path:
        return f"tracer/{path.rpartition('/tracer/')[2]}"
    return path if path.startswith(_PUBLIC_PATHS) else f"/.../{Path(path).name}"


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's number without a name
        return ""
    return "" if name == "root" else name


def _hosts() -> tuple[str, ...]:
    name = socket.gethostname()
    return tuple(dict.fromkeys((name, name.partition(".")[0])))
