"""The parts of a step that agents run, and how an attempt of one ends. The numbers stand in rows."""

from __future__ import annotations

from enum import IntEnum


class Part(IntEnum):
    """The parts of a step that agents run: what it does, how that is undone, and the question what became of it."""

    ACTION = 1
    UNDO = 2
    VERIFY = 3


class End(IntEnum):
    """How an attempt ended. After all but FAILED it may have happened; BROKEN is a failure that may hide an effect."""

    FAILED = 1
    BROKEN = 2
    TIMED_OUT = 3
    LOST = 4
    UNKNOWN = 5
