"""What a watchdog is told, and every bound of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stepward.client.tls import TlsFiles

NODES_MAX: Final = 64
# Supervision is critical after 8 s; with a look every second that is told within 10 s.
INTERVAL_S: Final = 1.0
INTERVAL_S_MIN: Final = 0.2
INTERVAL_S_MAX: Final = 60.0
# A node answers within milliseconds, or its loop is held up: then it is as good as silent.
ANSWER_S_MAX: Final = 2.0
CANARY_INTERVAL_S: Final = 15.0
CANARY_INTERVAL_S_MIN: Final = 1.0
CANARY_INTERVAL_S_MAX: Final = 3_600.0
DEAD_MAN_INTERVAL_S: Final = 10.0
# What a look twice needs so that a beat, which comes every second, is seen to move.
ONCE_APART_S: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line says."""

    addresses: tuple[str, ...]
    tls: TlsFiles | None = None
    interval_s: float = INTERVAL_S
    canary_interval_s: float = CANARY_INTERVAL_S
    """0: no canary is sent."""
    listen: tuple[str, int] | None = None
    """Where the pages are. None: nowhere."""
    command: tuple[str, ...] = ()
    """Run on a change. Empty: none is."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the command, beside what a change adds."""
    webhook: str = ""
    webhook_secret: bytes = b""
    dead_man: str = ""
    dead_man_interval_s: float = DEAD_MAN_INTERVAL_S
