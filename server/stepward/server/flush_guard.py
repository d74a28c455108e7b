"""Ends the process when its disk hangs: another node can only take over from one that is gone."""

from __future__ import annotations

import os
import sys
import threading
from typing import Final

EXIT_FLUSH_HANGS: Final = 71
_GUARD_LOOKS: Final = 20


class FlushGuard:
    """Ends the process when a flush does not come back: its disk is gone, and another node may lead.

    It counts its own looks at one and the same flush instead of time, so that a process that was paused as a whole and
    goes on is not taken for one whose disk hangs.
    """

    def __init__(self, ms_max: int) -> None:
        self._interval_s = ms_max / 1_000 / _GUARD_LOOKS
        self._ms_max = ms_max
        self._flushes = 0
        self._inside = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="flush-guard", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()

    @property
    def looking(self) -> bool:
        """Whether a flush goes on."""
        return self._inside

    def enter(self) -> None:
        """A flush begins."""
        self._flushes += 1
        self._inside = True

    def leave(self) -> None:
        """It has come back."""
        self._inside = False

    def _watch(self) -> None:
        seen, looks = 0, 0
        while not self._ended.wait(self._interval_s):
            if not self._inside or self._flushes != seen:
                seen, looks = self._flushes, 0
                continue
            looks += 1
            if looks >= _GUARD_LOOKS:
                # Logging could hang on the same disk; this one write is for the person who looks for the reason.
                reason = (
                    f"the disk did not finish a flush within {self._ms_max} ms; see that it works, then start again"
                )
                sys.stderr.write(f'{{"event":"flush_hangs","level":"critical","reason":"{reason}"}}\n')
                sys.stderr.flush()
                os._exit(EXIT_FLUSH_HANGS)
