"""Who follows jobs: they are only told that something has changed, and read for themselves what it is now.

So a slow one skips to the newest state, and holds no memory however much happens meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from stepward.server.core import keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.core.rejections import Refused, Rejection


class Watcher:
    """Somebody who follows one job, or the ends of all jobs of a caller."""

    __slots__ = ("_changed", "closed", "job_id", "key")

    def __init__(self, key: bytes, job_id: str) -> None:
        """`key`: of the row, or the prefix of the rows, that he follows. `job_id`: empty for those of a caller."""
        self._changed = asyncio.Event()
        self.key = key
        self.job_id = job_id
        # Why he is woken no more.
        self.closed: Rejection | None = None

    def wake(self) -> None:
        """What he follows has changed."""
        self._changed.set()

    async def wait(self) -> None:
        """Until it has changed since the last return."""
        await self._changed.wait()
        self._changed.clear()


class Watchers:
    """All who follow something at this node."""

    def __init__(self, count_max: int, overloaded: Callable[[str], Refused]) -> None:
        self._by_key: dict[bytes, list[Watcher]] = {}
        self._count_max = count_max
        self._overloaded = overloaded
        self.count = 0

    def of_job(self, job_id: str) -> Watcher:
        """Somebody to wake whenever the job changes. Give him back with `forget`.

        Raises:
            Refused: OVERLOADED, when too many follow.
        """
        return self._register(Watcher(keys.progress(job_id), job_id))

    def of_caller(self, caller_id: str) -> Watcher:
        """Somebody to wake whenever a job of the caller ends. Give him back with `forget`.

        Raises:
            Refused: OVERLOADED, when too many follow.
        """
        return self._register(Watcher(keys.ends_of_caller(caller_id), ""))

    def _register(self, watcher: Watcher) -> Watcher:
        if self.count >= self._count_max:
            raise self._overloaded(f"{self.count} callers follow jobs, which is the most; ask for jobs now and then")
        self._by_key.setdefault(watcher.key, []).append(watcher)
        self.count += 1
        return watcher

    def forget(self, watcher: Watcher) -> None:
        """Wake him no more."""
        watching = self._by_key[watcher.key]
        watching.remove(watcher)
        self.count -= 1
        if not watching:
            del self._by_key[watcher.key]

    def is_followed(self, key: bytes) -> bool:
        """Whether anybody follows the row under this key."""
        return _followed(key) in self._by_key

    def wake(self, key: bytes) -> None:
        """The row under this key has changed."""
        for watcher in self._by_key.get(_followed(key), ()):
            watcher.wake()

    def wake_all(self) -> None:
        """Anything may have changed."""
        for watching in self._by_key.values():
            for watcher in watching:
                watcher.wake()

    def close_all(self, refusal: Callable[[str], Refused]) -> None:
        """Send everybody away. `refusal` is given the job that somebody follows; empty: those of a caller."""
        for watching in self._by_key.values():
            for watcher in watching:
                watcher.closed = refusal(watcher.job_id).rejection
                watcher.wake()


def _followed(key: bytes) -> bytes:
    """What is followed when the row under this key is."""
    return key[: -keys.SEQUENCE_BYTES] if key[:1] == keys.CALLER_ENDS else key
