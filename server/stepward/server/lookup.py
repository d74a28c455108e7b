"""Where a name leads, asked of the machine's resolver, which may hang for as long as it likes.

It cannot be given up: whoever asked goes on, and its thread stays behind. On the loop's own executor such threads would
pile up, take the place of other work, and hold up the end of the process. So they are our own: few, and waited for by
nobody.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from concurrent.futures import Future
from typing import Final

# Names that may be asked for at once. A node calls one.
LOOKUPS_MAX: Final = 4
# Addresses of one name that are of use. More cannot be tried within a time that anybody waits.
ADDRESSES_MAX: Final = 8


class Lookups:
    """Asks for each name once at a time: whoever asks for one that is asked for already waits for the same answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[str, Future[list[str]]] = {}

    async def addresses(self, host: str) -> list[str]:
        """The addresses of a name, at least one; of a number itself. Waits for as long as the resolver does.

        Raises:
            OSError: There is none, or too many names are asked for.
        """
        if _is_number(host):
            return [host]
        return await asyncio.wrap_future(self._asked(host))

    def _asked(self, host: str) -> Future[list[str]]:
        with self._lock:
            pending = self._pending.get(host)
            if pending is not None:
                return pending
            if len(self._pending) >= LOOKUPS_MAX:
                msg = f"{host} is not looked up while {LOOKUPS_MAX} other names are: the resolver hangs"
                raise OSError(msg)
            pending = self._pending[host] = Future()
            # From now on nobody who gives up can cancel it for the others.
            pending.set_running_or_notify_cancel()
        threading.Thread(target=self._look, args=(host, pending), name="lookup", daemon=True).start()
        return pending

    def _look(self, host: str, pending: Future[list[str]]) -> None:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            answer: list[str] | OSError = [str(address[0]) for *_, address in found[:ADDRESSES_MAX]]
        except (OSError, UnicodeError) as error:
            answer = OSError(f"{host} is not found: {error}")
        with self._lock:
            del self._pending[host]
        if isinstance(answer, OSError):
            pending.set_exception(answer)
        else:
            pending.set_result(answer)


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
