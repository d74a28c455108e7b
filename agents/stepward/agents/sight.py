"""What a thread is doing at the moment, as one sees it from another."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any, Final

# The innermost frames say what blocks; those around them are the event loop's.
FRAMES_MAX: Final = 12


def codes_of(functions: Mapping[str, Callable[..., Any]]) -> dict[CodeType, str]:
    """The code of each handler, by which its frames are known; decorators are looked through."""
    found = {}
    for name, function in functions.items():
        for one in (function, inspect.unwrap(function)):
            code = getattr(one, "__code__", None)
            if isinstance(code, CodeType):
                found[code] = name
    return found


def of_thread(ident: int, codes: Mapping[CodeType, str]) -> str:
    """Which handler runs on a thread, and where it stands, innermost last."""
    frame = sys._current_frames().get(ident)
    if frame is None:
        return "nowhere: its thread has ended"
    stack = traceback.extract_stack(frame)[-FRAMES_MAX:]
    handler = _handler_of(frame, codes)
    where = f"the handler of {handler!r}" if handler else "code of no handler, such as a task that one has started"
    return f"{where}:\n{''.join(traceback.format_list(stack)).rstrip()}"


def _handler_of(frame: FrameType | None, codes: Mapping[CodeType, str]) -> str:
    while frame is not None:
        if frame.f_code in codes:
            return codes[frame.f_code]
        frame = frame.f_back
    return ""
