"""SIGTERM and SIGINT: the first one drains, the second one ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

EXIT_INTERRUPTED: Final = 1

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def draining(drain: Callable[[], None]) -> Iterator[None]:
    """Call `drain` on the first signal. Does nothing on other threads than the main one, where Python has no signals.

    Plain handlers, not those of an event loop: they are called also while a handler blocks the loop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told = False

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal told
        if told:
            os._exit(EXIT_INTERRUPTED)
        told = True
        drain()

    before = {signum: signal.signal(signum, handle) for signum in _SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
