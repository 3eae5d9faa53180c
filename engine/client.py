"""A caller's side of the engine: one kept-alive connection, clear errors, a bounded retry.

A decision is named by its `decision_id`, so asking again after a lost connection is safe: the engine repeats its answer.
The standard library's connection is used because it is the cheapest at hand: 90 us of CPU a call against httpx's 500.
One client per thread.
"""

from __future__ import annotations

import http.client
import time
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

RETRIES: Final = 3
_PAUSE_S: Final = 0.05


class EngineError(RuntimeError):
    """The engine could not be asked, or did not decide. `status` is HTTP's, 0 when there was no answer."""

    def __init__(self, status: int, code: str, message: str, *, path: str = "$", hint: str = "") -> None:
        super().__init__(f"{code}: {path}: {message}" + (f" ({hint})" if hint else ""))
        self.status, self.code, self.message, self.path, self.hint = status, code, message, path, hint


class EngineClient:
    """Asks one engine for decisions. `retries` counts the times a lost connection was replaced."""

    def __init__(self, base_url: str, timeout_s: float = 2.0) -> None:
        """Raises: ValueError for an address that is not http://host:port."""
        parts = urlsplit(base_url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{base_url!r} is not an address like http://127.0.0.1:8500")
        self.base_url = base_url
        self.timeout_s = timeout_s
        self.retries = 0
        self._host, self._port = parts.hostname, parts.port or 80
        self._connection: http.client.HTTPConnection | None = None

    def decide(self, strategy: str, body: dict[str, Any], *, deadline_ms: float | None = None) -> dict[str, Any]:
        """One decision (engine/WIRE.md has the bodies). `deadline_ms` is how long the answer is worth waiting for.

        Raises: EngineError: what the engine said, or code `unreachable` when no connection held for 3 more tries.
        """
        headers = {"content-type": "application/json"}
        if deadline_ms is not None:
            headers["x-hailstream-deadline-ms"] = str(deadline_ms)
        return self._ask("POST", f"/v1/strategies/{strategy}/decide", msgspec.json.encode(body), headers)

    def strategies(self) -> dict[str, Any]:
        """What is live, and what is not used and why. Raises: EngineError."""
        return self._ask("GET", "/v1/strategies", None, {})

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until the engine can decide. Raises: EngineError with the last reason after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._ask("GET", "/readyz", None, {})
                return
            except EngineError as error:
                if time.monotonic() >= deadline:
                    raise
                if error.status not in (0, 503):
                    raise
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> dict[str, Any]:
        for attempt in range(RETRIES + 1):
            try:
                status, raw = self._once(method, path, body, headers)
                break
            except TimeoutError as error:
                self.close()
                raise EngineError(
                    0, "timeout", f"no answer within {self.timeout_s:g} s: {error}", path=self.base_url
                ) from None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if attempt == RETRIES:
                    hint = "is the engine running? `hailstream serve` starts one"
                    raise EngineError(
                        0, "unreachable", f"{type(error).__name__}: {error}", path=self.base_url, hint=hint
                    ) from None
                self.retries += 1
                headers = {**headers, "x-hailstream-retry": str(attempt + 1)}
                time.sleep(_PAUSE_S * attempt)
        try:
            answer = msgspec.json.decode(raw)
        except msgspec.DecodeError:
            raise EngineError(status, "not_json", raw[:200].decode("utf-8", "replace"), path=path) from None
        if status == 200:
            return answer
        raise _error_of(status, answer, path)

    def _once(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._host, self._port, timeout=self.timeout_s)
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        return response.status, response.read()


def _error_of(status: int, answer: Any, path: str) -> EngineError:
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict):
        return EngineError(status, error["code"], error["message"], path=error["path"], hint=error["hint"])
    problems = answer.get("errors") if isinstance(answer, dict) else None
    detail = "; ".join(f"{what}: {text}" for what, text in problems.items()) if problems else repr(answer)
    return EngineError(status, "not_ready", detail, path=path)
