"""The thread on which a node waits for its disk, so that its loop need not."""

from __future__ import annotations

import contextlib
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from stepward.server.store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    _Task = tuple[Callable[[], None], Callable[[], None]]

_ENDS: Final = None


class Flusher:
    """Runs one flush at a time. The thread is made with the first: a node alone needs none.

    Args:
        call_on_loop: Has something called on the thread of the loop, soon.
    """

    def __init__(self, call_on_loop: Callable[[Callable[[], None]], object]) -> None:
        self._call_on_loop = call_on_loop
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def flush(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        """Run `work` beside the loop, and `done` on the loop behind it, whatever came of it.

        Whoever ends the commit to which it belongs is told of a failure; here nobody could act on it.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
            self._thread.start()
        self._tasks.put((work, done))

    def stop(self) -> None:
        """Wait for the end of the thread. Safe to repeat. The guard over flushes bounds how long one lasts."""
        if self._thread is not None:
            self._tasks.put(_ENDS)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            work, done = task
            try:
                # What it raises, `commit` raises again on the loop.
                with contextlib.suppress(StoreError):
                    work()
            finally:
                self._call_on_loop(done)
