"""The local page: only who has its address is answered, and what is dropped is bounded and explained."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.exporters.snapshot_samples import out_of_memory
from tests.snapshot.dumps import write
from tests.trace import chrome
from tracer.commands import serve
from tracer.sessions.page_server import MAX_FILES, PageServer

LIMIT_BYTES = 1 << 20


@contextmanager
def serving(server: PageServer) -> Iterator[PageServer]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PageServer]:
    (tmp_path / "pages").mkdir()
    made = PageServer(
        tmp_path / "pages",
        write_page=serve._write_page,
        write_comparison=serve._compare,
        limit_bytes=LIMIT_BYTES,
    )
    with serving(made):
        yield made


def asked(
    server: PageServer, method: str, path: str, body: bytes | None = None, *, token: str | None = None, **headers: str
) -> tuple[int, Any]:
    """The status and the body, which is JSON or a page."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, f"/{server.token if token is None else token}/{path}", body, named)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.headers["Referrer-Policy"] == "no-referrer" and answer.headers["Cache-Control"] == "no-store"
    return answer.status, json.loads(text) if answer.headers["Content-Type"] == "application/json" else text


def dropped(server: PageServer, path: Path) -> tuple[int, Any]:
    return asked(server, "POST", "files", path.read_bytes(), X_File_Name=path.name)


def test_dropped_files_have_their_pages_and_a_comparison(server: PageServer, tmp_path: Path) -> None:
    snapshot = write(tmp_path / "s.pickle", out_of_memory())
    trace = chrome.write(tmp_path / "t.json", chrome.training_step())
    answers = [dropped(server, path) for path in (snapshot, trace, snapshot)]
    assert [(status, answer["name"]) for status, answer in answers] == [
        (200, "s.pickle"),
        (200, "t.json"),
        (200, "s.pickle (2)"),
    ]
    assert asked(server, "GET", "files") == (200, [answer for _, answer in answers])
    titles = [asked(server, "GET", answer["page"])[1].partition("<title>")[2][:40] for _, answer in answers]
    assert titles[0] == titles[2] != titles[1]
    status, compared = asked(server, "POST", "compare", json.dumps({"files": [0, 2]}).encode())
    assert status == 200 and "Two peaks compared" in asked(server, "GET", compared["page"])[1]
    status, refused = asked(server, "POST", "compare", json.dumps({"files": [0, 1]}).encode())
    assert status == 422 and "cannot be compared with a trace" in refused["error"] and refused["hint"]


@pytest.mark.parametrize(
    "asking",
    [
        {"token": "guessed"},
        {"token": ""},
        {"Host": "evil.example"},
        {"Host": "evil.example:{port}"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("GET", "pages/0"), ("POST", "files")])
def test_without_the_address_nothing_is_answered(
    server: PageServer, asking: dict[str, str], method: str, path: str, tmp_path: Path
) -> None:
    """A page of another site knows no token, and a name of its own for this machine does not help it."""
    assert dropped(server, write(tmp_path / "s.pickle", out_of_memory()))[0] == 200
    asking = {name: text.format(port=server.server_port) for name, text in asking.items()}
    assert asked(server, method, path, b"" if method == "POST" else None, **asking) == (
        404,
        {"error": "Not found.", "hint": ""},
    )
    assert len(server.files) == 1


def test_what_cannot_be_read_is_a_sentence_and_is_deleted(server: PageServer, tmp_path: Path) -> None:
    (tmp_path / "x.pickle").write_bytes(b"cos\nsystem\n(S'touch run'\ntR.")
    status, answer = dropped(server, tmp_path / "x.pickle")
    assert status == 422 and "os.system" in answer["error"] and answer["hint"]
    (tmp_path / "y.txt").write_text("a text")
    assert "2/y.txt" in (sentence := dropped(server, tmp_path / "y.txt")[1]["error"]), sentence
    assert str(tmp_path) not in sentence
    assert list(server.folder.iterdir()) == [] and server.num_bytes == 0 and not Path("run").exists()


def test_what_is_dropped_is_bounded(server: PageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(server, "POST", "files", Content_Length=str(LIMIT_BYTES + 1))[0] == 413
    assert asked(server, "POST", "compare", b" " * 5000)[0] == 404
    assert asked(server, "POST", "files", Content_Length="-1")[0] == 411
    monkeypatch.setattr(server, "files", [None] * MAX_FILES)
    assert asked(server, "POST", "files", b"x")[0] == 413


@pytest.mark.parametrize(
    "name", ["../../x.json", "a/b\\..\\x.json", "%2e%2e%2fx.json", ".x.json", "x" * 500 + ".json", "\u202e/"]
)
def test_a_name_leads_nowhere(server: PageServer, name: str, tmp_path: Path) -> None:
    trace = chrome.write(tmp_path / "t.json", chrome.training_step())
    headers = {"X_File_Name": name.encode("ascii", "ignore").decode()}
    asked(server, "POST", "files", trace.read_bytes(), **headers)
    assert all(file.path.parent.parent == server.folder for file in server.files)
    assert {path.name for path in tmp_path.iterdir()} == {"pages", "t.json"}


def test_two_files_that_are_none_are_refused(server: PageServer) -> None:
    for body in (b"", b"[]", b'{"files": [0]}', b'{"files": [0, 1]}', b'{"files": ["a", {}]}'):
        assert asked(server, "POST", "compare", body)[0] == 400


def test_a_fault_of_ours_keeps_its_traceback_and_the_server(
    server: PageServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "write_page", lambda path, page: 1 / 0)
    assert asked(server, "POST", "files", b"x")[0] == 500
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert asked(server, "GET", "")[0] == 200
