"""What a node tells of itself: one JSON line an event on stderr, and counters.

Logs are events with fields, never payloads. Everything that the libraries log goes the same way.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structlog.stdlib import BoundLogger

# From what a disk with a battery takes to what ends a leadership, and to what ends the process.
DURATION_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
# From what a supervisor that is awake takes, over the second in which it looks at latest, to what nobody can miss.
DETECTION_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0)


class Histogram:
    """How many durations were at most so long. One thread notes them; any may read, and sees each one whole or not."""

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float] = DURATION_BOUNDS_S) -> None:
        self.bounds_s = bounds_s
        # Of each bound those above the bound before it; the last one holds what is above all.
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def note(self, took_s: float) -> None:
        """One took so long."""
        self.counts[bisect_left(self.bounds_s, took_s)] += 1
        self.sum_s += took_s


class Counters(Struct):
    """How much a process has done since it started. Only ever counts up.

    Written on the thread of the event loop; any thread may read a field, or copy a tally with `dict`.
    """

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
    # Messages of other nodes that nobody could read.
    frames_refused: int = 0
    # Streams to other nodes that ended or could not be made, and streams of others that were not taken.
    links_lost: int = 0
    hellos_refused: int = 0
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
    # Leaderships that this node gave up because its supervisor gave no sign of life.
    supervisors_lost: int = 0
    # Sweeps, those that could not be decided for want of disk or of room, and subjects that were handled.
    sweeps: int = 0
    sweeps_refused: int = 0
    swept: int = 0
    # Notices of incidents that were sent, that were given up, and requests with some that went wrong.
    notices_sent: int = 0
    notices_given_up: int = 0
    webhook_failures: int = 0
    # Ended jobs that were removed after their time, and jobs that were found with nothing left to move them: our fault.
    purged: int = 0
    jobs_stuck: int = 0
    # Messages between nodes, and those that were dropped because no stream to their node stood.
    frames_sent: int = 0
    frames_received: int = 0
    frames_dropped: int = 0
    frame_bytes_sent: int = 0
    frame_bytes_received: int = 0
    # Canaries that this node's own agent has worked on.
    canaries: int = 0
    # Commands that were sent on to the node that leads.
    forwarded: int = 0
    # Rows that were fetched from the node that leads, because the log alone could not help.
    rows_fetched: int = 0
    # How often that led to rows that could be gone on with, and how often it failed and was begun again.
    fetches: int = 0
    fetches_failed: int = 0
    # Rows that were given to other nodes in this way, and how often all of them were.
    rows_exported: int = 0
    exports: int = 0
    # How often another node than before was seen to lead.
    leader_changes: int = 0
    # How calls ended: by method, then by reason or OK.
    calls_by_code: dict[str, dict[str, int]] = field(default_factory=dict)
    # Remedies that were applied here, whoever led: by trouble, remedy, and what led to it.
    remedies: dict[tuple[str, str, str], int] = field(default_factory=dict)
    # Commands that were rejected, and what was shed, by reason.
    rejections: dict[str, int] = field(default_factory=dict)
    shed_by_reason: dict[str, int] = field(default_factory=dict)
    # How long flushes of what had changed took, and steps of the replica that had something to do.
    flush_s: Histogram = field(default_factory=Histogram)
    step_s: Histogram = field(default_factory=Histogram)
    # For how long what the supervisor of this node judged had been due.
    detection_s: Histogram = field(default_factory=lambda: Histogram(DETECTION_BOUNDS_S))
    # Of these, those that were noticed later than a supervisor that is well would ever be.
    detections_late: int = 0

    def numbers(self) -> dict[str, int]:
        """The plain ones, by name."""
        return {name: value for name in self.__struct_fields__ if isinstance(value := getattr(self, name), int)}

    def shed_for(self, reason: str) -> None:
        """Something was shed."""
        self.shed += 1
        self.shed_by_reason[reason] = self.shed_by_reason.get(reason, 0) + 1


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
