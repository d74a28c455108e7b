"""What the end of a handler comes to, wherever it ran."""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import Any, Final

from stepward.agents import outcomes
from stepward.agents.action import Action, outcome_of_error
from stepward.agents.attempts import AttemptKey
from stepward.agents.context import Context
from stepward.agents.errors import Cancelled, StepFailed, Unknown

# Characters of a traceback that are logged.
TRACE_CHARS_MAX: Final = 16_384

_log = logging.getLogger("stepward.agents.handlers")


def outcome_of_end(
    action: Action, key: AttemptKey, context: Context, *, error: BaseException | None, value: Any
) -> outcomes.Outcome:
    """What a handler's end comes to: an error, or else the value that it returned.

    After it has learned that it is cancelled, neither what it returns nor what breaks is what it was to do: that counts
    as stopped, never as a success. Only what it says in so many words is believed.
    """
    deliberate = isinstance(error, StepFailed | Unknown)
    if error is not None:
        _log_error(action, key, context, error, deliberate=deliberate)
    if context.cancel_seen and not deliberate:
        return outcomes.Stopped()
    return action.outcome_of_value(value) if error is None else outcome_of_error(error)


def _log_error(action: Action, key: AttemptKey, context: Context, error: BaseException, *, deliberate: bool) -> None:
    fields = (action.name, *key)
    if deliberate:
        _log.warning("attempt_failed action=%s job=%s step=%s token=%s: %s", *fields, outcomes.cut(repr(error)))
    elif isinstance(error, Cancelled) or (isinstance(error, asyncio.CancelledError) and context.cancel_seen):
        _log.info("handler_stopped action=%s job=%s step=%s token=%s", *fields)
    else:
        _log_raised(fields, error)


def _log_raised(fields: tuple[Any, ...], error: BaseException) -> None:
    """Log an exception with its traceback, cut in the middle: the text of an exception may be a whole response."""
    trace = "".join(traceback.format_exception(error))
    if len(trace) <= TRACE_CHARS_MAX:
        _log.error("handler_raised action=%s job=%s step=%s token=%s", *fields, exc_info=error)
        return
    half = TRACE_CHARS_MAX // 2
    trace = f"{trace[:half]}\n... {len(trace) - 2 * half} characters are left out ...\n{trace[-half:]}"
    _log.error("handler_raised action=%s job=%s step=%s token=%s\n%s", *fields, trace)
