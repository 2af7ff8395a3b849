"""Made-up requests to an engine's server: they are token ids, which need no tokenizer."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from tracer.errors import TracerError
from tracer.units import some

PROMPT_TOKENS: Final = 512
NEW_TOKENS: Final = 16
_HOST: Final = "127.0.0.1"
_ROUTE: Final = "/inference/v1/generate"
"""The route of vLLM, from 0.11 on, that takes and returns token ids."""
_MOST_AT_ONCE: Final = 256
_ANSWER_LIMIT_S: Final = 300.0
_LOOK_EVERY_S: Final = 0.2


def free_address() -> tuple[str, int]:
    """Return an address of this machine on which nothing listens."""
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        return _HOST, int(listener.getsockname()[1])


def send_requests(port: int, num_requests: int, context_tokens: int, *, is_running: Callable[[], bool]) -> None:
    """Send requests to the engine's server all at once, and wait for the answers.

    Args:
        context_tokens: The longest request that the engine takes; half of it is the longest prompt that is sent.
        is_running: Whether the engine has not ended.

    Raises:
        TracerError: The engine ended, or did not answer a request.
    """
    prompt = list(range(1, 1 + max(1, min(PROMPT_TOKENS, context_tokens // 2))))
    new_tokens = min(NEW_TOKENS, context_tokens - len(prompt))
    sampling = {"max_tokens": new_tokens, "min_tokens": new_tokens, "ignore_eos": True, "detokenize": False}
    body = json.dumps({"token_ids": prompt, "sampling_params": sampling})
    _wait_until_it_listens(port, is_running)
    with ThreadPoolExecutor(min(num_requests, _MOST_AT_ONCE)) as senders:
        statuses = list(senders.map(lambda _: _answer(port, "POST", _ROUTE, body), range(num_requests)))
    refused = [words for status, words in statuses if status != http.client.OK]
    if refused:
        raise TracerError(
            f"The engine did not answer {some(len(refused), 'request')} of {num_requests}: {refused[0][:300]}",
            hint="Its memory is said without --requests. Requests are sent to the server of vLLM from 0.11 on.",
        )


def _wait_until_it_listens(port: int, is_running: Callable[[], bool]) -> None:
    while _answer(port, "GET", "/health")[0] != http.client.OK:
        if not is_running():
            raise TracerError("The engine ended before it served.", hint="engine.txt in --save-dir says why.")
        time.sleep(_LOOK_EVERY_S)


def _answer(port: int, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    """Return the status of an answer and its text; status 0 where none came."""
    connection = http.client.HTTPConnection(_HOST, port, timeout=_ANSWER_LIMIT_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer: Any = connection.getresponse()
        return int(answer.status), answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, f"{type(error).__name__}: {error}"
    finally:
        connection.close()
