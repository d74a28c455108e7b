"""What is stored of a leadership."""

from __future__ import annotations

from stepward.server.core.rows import Row


class Epoch(Row, frozen=True):
    """When the leadership that is at work began (`L`): before that nobody could hear anything for a while."""

    epoch: int
    log_ms: int
