"""One HTTP request to somebody else's server, within a time that is ours.

urllib bounds each read, and not the whole; so the request runs on a thread of its own, which is left behind when the
time is over. So many may be left behind, and then nothing more is sent until one has ended.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

REQUEST_S_MAX: Final = 5.0
LEFT_BEHIND_MAX: Final = 4
# Nobody reads an answer; this much is taken so that the connection ends in good order.
_ANSWER_BYTES_MAX: Final = 1_024
# Of where a redirect leads.
_TOLD_CHARS_MAX: Final = 200


class NotTaken(Exception):  # noqa: N818 - it reads as what happened
    """The other side did not take it. The message says why."""


def check_url(url: str) -> str:
    """A URL that can be called.

    Raises:
        ValueError: It cannot.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no address of a web server; give http://... or https://...")
    return url


def signature(secret: bytes, body: bytes, at_s: int) -> str:
    """What proves who sent a body, and when: `t=SECONDS,v1=HMAC`, of SHA-256 over SECONDS, a dot and the body."""
    mac = hmac.new(secret, f"{at_s}.".encode() + body, hashlib.sha256)
    return f"t={at_s},v1={mac.hexdigest()}"


class Poster:
    """Sends requests, one at a time for each that waits."""

    def __init__(self) -> None:
        self._left_behind = threading.BoundedSemaphore(LEFT_BEHIND_MAX)

    async def send(self, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> None:
        """GET, or POST when there is a body; done when the server has answered with 2xx.

        Raises:
            NotTaken: It has not, within the time.
        """
        if not self._left_behind.acquire(blocking=False):
            raise NotTaken(f"{LEFT_BEHIND_MAX} earlier requests hang; nothing is sent until one of them has ended")
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()

        def work() -> None:
            try:
                why = _request(url, body, headers or {})
            finally:
                self._left_behind.release()
            # The loop may be gone when this thread comes back late.
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, ended, why)

        threading.Thread(target=work, name="post", daemon=True).start()
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                why = await ended
        except TimeoutError:
            raise NotTaken(f"no answer within {REQUEST_S_MAX:.0f} s") from None
        if why:
            raise NotTaken(why)


def _settle(ended: asyncio.Future[str], why: str) -> None:
    if not ended.done():
        ended.set_result(why)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows none: what is posted would go on as a GET, without its body, and look as if it had been taken.

    A GET would go where nobody has sent it: a dead-man service that has moved, or a page that asks for a login, is not
    the one that was to be told that all is well.
    """

    def redirect_request(  # type: ignore[explicit-override]  # `override` is of 3.12
        self, request: urllib.request.Request, *given: Any
    ) -> urllib.request.Request | None:
        """The next request; None: the answer is the redirect itself."""
        return None


_OPENER: Final = urllib.request.build_opener(_Redirects)


def _request(url: str, body: bytes | None, headers: Mapping[str, str]) -> str:
    """Why it was not taken; empty: it was."""
    request = urllib.request.Request(url, data=body, headers={"User-Agent": "stepward-watchdog", **headers})
    try:
        with _OPENER.open(request, timeout=REQUEST_S_MAX) as answer:
            answer.read(_ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        error.close()
        leads = error.headers.get("Location", "")[:_TOLD_CHARS_MAX] if 300 <= error.code < 400 else ""
        return f"it answered {error.code}" + (
            f", and leads to {leads}: give that address if it is meant" if leads else ""
        )
    except (OSError, HTTPException, ValueError) as error:
        return str(error) or type(error).__name__
    return ""
