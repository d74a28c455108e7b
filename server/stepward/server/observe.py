"""What a node tells of itself: one JSON line an event on stderr, and counters.

Logs are events with fields, never payloads. Everything that the libraries log goes the same way.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger


class Counters(Struct):
    """How much a process has done since it started. Only ever counts up."""

    # Batches that were applied, rows that they put (index rows count; deletes and the head do not), and the bytes of
    # their entries in the log.
    batches: int = 0
    puts: int = 0
    log_bytes: int = 0
    # Flushes of the store to disk, and steps of the replica.
    flushes: int = 0
    steps: int = 0
    # Commands that were handed to the replica.
    commands: int = 0
    # Calls that ended, and those of them that were refused.
    calls: int = 0
    refusals: int = 0
    # Submissions that were shed, and agents' streams and watchers that were closed because they did not read.
    shed: int = 0
    slow_streams: int = 0
    # Where we were wrong: in a rule, in a call, in delivering what was committed, in the supervisor's loop.
    rule_failures: int = 0
    call_failures: int = 0
    delivery_failures: int = 0
    supervisor_failures: int = 0
    # Sweeps, those that could not be decided for want of disk or of room, and subjects that were handled.
    sweeps: int = 0
    sweeps_refused: int = 0
    swept: int = 0
    # Ended jobs that were removed after their time, and jobs that were found with nothing left to move them: our fault.
    purged: int = 0
    jobs_stuck: int = 0


def configure_logging(level: str) -> None:
    """Send all logs of this process to stderr as JSON lines. Called once, by `__main__`."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.EventRenamer("event"),
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def logger(name: str) -> BoundLogger:
    """The logger of a part of the node, such as "supervisor"."""
    bound: BoundLogger = structlog.stdlib.get_logger(f"stepward.{name}")
    return bound
