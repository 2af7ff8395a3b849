"""Chromium as a person opens it: spoken to through a pipe, with nothing switched on that a debugger would need.

Playwright and Selenium switch on the debugger's `Runtime` domain in every page. V8 then finds the line of each
exception's whole stack when it is made, for which it may read a long script once more: time that nobody waits for who
has not opened the developer's tools.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Message = dict[str, Any]


class Chromium:
    """A browser behind a pair of pipes; `command` speaks to it, or to one of its tabs."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._number = 0
        self._received = b""

    def command(self, method: str, *, tab: str | None = None, **parameters: Any) -> Message:
        """The answer to a command of the developer tools' protocol."""
        self._number += 1
        message: Message = {"id": self._number, "method": method, "params": parameters}
        if tab is not None:
            message["sessionId"] = tab
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next_message()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: Message = answer["result"]
                return result

    def _next_message(self) -> Message:
        while b"\0" not in self._received:
            more = os.read(self._from, 1 << 16)
            if not more:
                raise RuntimeError("Chromium has ended")
            self._received += more
        message, _, self._received = self._received.partition(b"\0")
        found: Message = json.loads(message)
        return found

    @contextmanager
    def new_tab(self, *, width: int = 1280, height: int = 900) -> Iterator[str]:
        """An empty tab of a fresh profile."""
        profile = self.command("Target.createBrowserContext")["browserContextId"]
        target = self.command(
            "Target.createTarget", url="about:blank", browserContextId=profile, width=width, height=height
        )["targetId"]
        tab: str = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        try:
            yield tab
        finally:
            self.command("Target.disposeBrowserContext", browserContextId=profile)

    def evaluate(self, tab: str, expression: str) -> Any:
        """The value of a JavaScript expression in a tab."""
        return self.command("Runtime.evaluate", tab=tab, expression=expression, returnByValue=True)["result"].get(
            "value"
        )

    def wait_for(self, tab: str, expression: str, *, seconds: float = 120) -> None:
        """Look now and then, seldom enough not to be in the way, until the expression is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(tab, expression):
            if time.monotonic() > end:
                raise TimeoutError(expression)
            time.sleep(0.1)


@contextmanager
def chromium(*flags: str) -> Iterator[Chromium]:
    """A running Chromium without a window; needs Debian's package chromium."""
    program = shutil.which("chromium")
    if program is None:
        raise FileNotFoundError("chromium is not installed")
    # The browser reads commands at 3 and answers at 4: a shell moves the pipes' ends there.
    read_commands, to_browser = os.pipe()
    from_browser, write_answers = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        start = f'exec "$@" 3<&{read_commands} 4>&{write_answers}'
        arguments = ["--headless=new", "--no-sandbox", "--remote-debugging-pipe", f"--user-data-dir={profile}", *flags]
        process = subprocess.Popen(
            ["bash", "-c", start, "bash", program, *arguments],
            pass_fds=(read_commands, write_answers),
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        try:
            yield Chromium(to_browser, from_browser)
        finally:
            os.close(to_browser)
            os.close(from_browser)
            process.terminate()
            process.wait()
