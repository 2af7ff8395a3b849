"""A page on the loopback interface to drop files on, and the pages of what was dropped; nothing leaves the machine."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sys
import traceback
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, count
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Final
from urllib.parse import unquote

from tracer.errors import TracerError, first_line
from tracer.exporters.page.html import filled
from tracer.units import format_bytes

MAX_FILES: Final = 200
_MAX_JSON_BYTES: Final = 4096
_CHUNK_BYTES: Final = 1 << 20
_MAX_NAME: Final = 120
_HTML, _JSON = "text/html; charset=utf-8", "application/json"


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file that was read."""

    name: str
    path: Path
    page: str  # Of its page, behind the address


class RefusedError(Exception):
    """A request that is not answered."""

    def __init__(self, status: HTTPStatus, sentence: str, hint: str = "") -> None:
        super().__init__(sentence)
        self.status, self.hint = status, hint


class PageServer(ThreadingHTTPServer):
    """Serves one user: its address has a random token, without which every request is refused."""

    daemon_threads = True

    def __init__(
        self,
        folder: Path,
        *,
        write_page: Callable[[Path, Path], None],
        write_comparison: Callable[[Path, Path, Path], None],
        limit_bytes: int,
        port: int = 0,
    ) -> None:
        """Listen on 127.0.0.1.

        Args:
            folder: Where dropped files and pages are kept.
            write_page: Writes the page of a file; the second argument is where.
            write_comparison: Writes the page of two files; the third argument is where.
            limit_bytes: That all dropped files together may have.
            port: 0 for any that is free.

        Raises:
            OSError: The port is taken.
        """
        super().__init__(("127.0.0.1", port), _Handler)
        self.token = secrets.token_urlsafe(24)
        self.folder, self.limit_bytes, self.num_bytes = folder.resolve(), limit_bytes, 0
        self.write_page, self.write_comparison = write_page, write_comparison
        self.files: list[ReadFile] = []
        self.pages: list[Path] = []  # In the order in which they were made
        self.numbers = count(1)  # Of folders of dropped files
        self._reading, self._counting = Lock(), Lock()

    @property
    def address(self) -> str:
        """Where a browser finds it, with the token."""
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave out the traceback of a browser that has gone; print that of a fault."""
        if not isinstance(sys.exception(), OSError):
            traceback.print_exc()

    def take(self, num_bytes: int) -> None:
        """Count the bytes of a file that is coming.

        Raises:
            RefusedError: They are too many.
        """
        with self._counting:
            if self.num_bytes + num_bytes > self.limit_bytes or len(self.files) >= MAX_FILES:
                limit = f"{format_bytes(self.limit_bytes)} in {MAX_FILES} files"
                raise RefusedError(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"More than {limit}.", "Start it with --max-size."
                )
            self.num_bytes += num_bytes

    def release(self, num_bytes: int) -> None:
        """Count the bytes of a file no longer."""
        with self._counting:
            self.num_bytes -= num_bytes

    def read(self, name: str, path: Path) -> dict[str, object]:
        """Write the page of a file.

        Raises:
            TracerError: It cannot be read.
        """
        with self._reading:
            page = self._write(lambda out: self.write_page(self._short(path), out))
            self.files.append(ReadFile(self._unlike_others(name), path, page))
            return self.shown(len(self.files) - 1)

    def _unlike_others(self, name: str) -> str:
        """Return a name that no other file has, as `memory_snapshot.pkl (2)`: each run writes a file of that name."""
        known = {file.name for file in self.files}
        names = chain([name], (f"{name} ({number})" for number in count(2)))
        return next(free for free in names if free not in known)

    def shown(self, index: int) -> dict[str, object]:
        """Return a file as the script of the page knows it."""
        return {"index": index, "name": self.files[index].name, "page": self.files[index].page}

    def compare(self, before: int, after: int) -> dict[str, object]:
        """Write the page of two files that were read.

        Raises:
            TracerError: They cannot be compared.
        """
        with self._reading:
            first, second = self.files[before], self.files[after]
            name, (old, new) = f"{first.name} and {second.name}", map(self._short, (first.path, second.path))
            page = self._write(lambda out: self.write_comparison(old, new, out))
            return {"name": name, "page": page}

    def _short(self, path: Path) -> Path:
        """The path of a dropped file from our folder, as pages and errors show it."""
        return path.relative_to(self.folder) if path.is_relative_to(self.folder) else path

    def _write(self, write: Callable[[Path], None]) -> str:
        out = self.folder / f"page{len(self.pages)}.html"
        with chdir(self.folder):
            write(out)
        self.pages.append(out)
        return f"pages/{len(self.pages) - 1}"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout: ClassVar[int] = 60  # Seconds that a connection may be silent
    server_version, sys_version = "torch-timeline", ""

    def do_GET(self) -> None:
        """Send the page to drop files on, or a page of what was dropped."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Read a file, or compare two."""
        self._answer(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def _answer(self, answer: Callable[[list[str]], tuple[str, bytes]]) -> None:
        try:
            kind, body = answer(self._checked_path())
            self._send(HTTPStatus.OK, kind, body)
        except RefusedError as refused:
            self._send_error(refused.status, str(refused), refused.hint)
        except TracerError as error:
            sentence = str(error).replace(f"{self.server.folder}{os.sep}", "")
            self._send_error(HTTPStatus.UNPROCESSABLE_ENTITY, sentence, error.hint)
        except OSError:
            raise
        except Exception as fault:
            traceback.print_exc()
            self._send_error(HTTPStatus.INTERNAL_SERVER_ERROR, f"A fault of this program: {first_line(fault)}.")

    def _checked_path(self) -> list[str]:
        """The parts of the path behind the token; another site's name for this machine is refused, as is its page."""
        port = self.server.server_port
        own = (f"127.0.0.1:{port}", f"localhost:{port}")
        origin = self.headers.get("Origin")
        is_ours = self.headers.get("Host") in own and origin in (None, *(f"http://{name}" for name in own))
        _, token, *rest = [*self.path.split("?")[0].split("/"), ""]
        if not is_ours or not secrets.compare_digest(token.encode(), self.server.token.encode()):
            raise RefusedError(HTTPStatus.NOT_FOUND, "Not found.")
        return [part for part in rest if part]

    def _get(self, parts: list[str]) -> tuple[str, bytes]:
        pages = self.server.pages
        match parts:
            case []:
                return _HTML, _drop_page().encode()
            case ["files"]:
                return _JSON, json.dumps([self.server.shown(index) for index in range(len(self.server.files))]).encode()
            case ["pages", number] if number.isdecimal() and int(number) < len(pages):
                return _HTML, pages[int(number)].read_bytes()
        raise RefusedError(HTTPStatus.NOT_FOUND, "Not found.")

    def _post(self, parts: list[str]) -> tuple[str, bytes]:
        length = self._length()
        if parts == ["files"]:
            return _JSON, json.dumps(self._read(length)).encode()
        if parts == ["compare"] and length <= _MAX_JSON_BYTES:
            return _JSON, json.dumps(self.server.compare(*self._two_files(self.rfile.read(length)))).encode()
        raise RefusedError(HTTPStatus.NOT_FOUND, "Not found.")

    def _length(self) -> int:
        text = self.headers.get("Content-Length", "")
        if not text.isdecimal() or len(text) > 20:
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "The length is missing.")
        return int(text)

    def _read(self, length: int) -> dict[str, object]:
        """Read the file that comes; one that cannot be read is deleted."""
        name = _plain_name(unquote(self.headers.get("X-File-Name", "")))
        self.server.take(length)
        folder = self.server.folder / str(next(self.server.numbers))
        folder.mkdir(mode=0o700)
        try:
            self._receive(folder / name, length)
            return self.server.read(name, folder / name)
        except BaseException:
            self.server.release(length)
            shutil.rmtree(folder)
            raise

    def _receive(self, path: Path, length: int) -> None:
        with path.open("wb") as file:
            while length and (chunk := self.rfile.read(min(length, _CHUNK_BYTES))):
                file.write(chunk)
                length -= len(chunk)
        if length:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "The file ended early.")

    def _two_files(self, body: bytes) -> tuple[int, int]:
        try:
            before, after = json.loads(body)["files"]
        except (ValueError, KeyError, TypeError):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "Two files are compared.") from None
        known = range(len(self.server.files))
        if not all(isinstance(index, int) and index in known for index in (before, after)):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "Two files are compared.")
        return before, after

    def _send_error(self, status: HTTPStatus, sentence: str, hint: str = "") -> None:
        self._send(status, _JSON, json.dumps({"error": sentence, "hint": hint}).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Connection": "close",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _plain_name(name: str) -> str:
    """A file's name without folders, and with letters that every file system has."""
    plain = re.sub(r"[^\w.+-]", "_", re.split(r"[/\\]", name)[-1])[-_MAX_NAME:].lstrip(".")
    return plain or "file"


def _drop_page() -> str:
    """Return the page that files are dropped on: its script sends them here, and nothing else is loaded or sent."""
    return filled(
        "drop.html", title="torch-timeline", styles=("page", "drop"), scripts=("elements", "drop"), may_send=True
    )
