"""Notices: what somebody outside is to be told of incidents, in order, and how far that has come.

Each has a number. The newest are kept, however many have been sent: so one who begins to listen late, or a leader who
takes over from another, goes on behind the cursor. Those that are pushed out before they were sent are counted.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from stepward.server.core import keys, ledger_rows
from stepward.server.core.commands import NoticesMarked
from stepward.server.core.ledger_rows import Notice, NoticeCursor

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.commands import MarkNotices
    from stepward.server.core.draft import Draft
    from stepward.server.core.ledger_rows import IncidentCounts
    from stepward.server.core.reader import Reader


def add(batch: Batch, counts: IncidentCounts, incident: int, *, resolved: bool) -> int:
    """An incident has changed: remember that, and forget the oldest notice beyond the bound. Its number."""
    number = counts.newest_notice + 1
    batch.draft.put(keys.notice(number), Notice(incident, resolved, batch.moment.wall_ms))
    if number > batch.limits.notices_max:
        batch.draft.delete(keys.notice(number - batch.limits.notices_max))
    return number


def mark(batch: Batch, command: MarkNotices) -> NoticesMarked:
    """Move the cursor. It never goes back, so whoever marks twice, or late, changes nothing.

    Notices that it goes over and that were not sent were given up, or had been pushed out before.
    """
    before = cursor(batch.draft)
    done = max(command.done, 0 if before is None else before.done)
    if before is None or done > before.done:
        given_up = command.given_up + (0 if before is None else before.given_up)
        batch.draft.put(keys.NOTICE_CURSOR, NoticeCursor(done, given_up))
    return NoticesMarked(done)


def cursor(reader: Reader | Draft) -> NoticeCursor | None:
    """How far notices have been sent; None: nobody has begun."""
    row = reader.get(keys.NOTICE_CURSOR)
    assert row is None or isinstance(row, NoticeCursor), row
    return row


def behind(reader: Reader, number: int, count_max: int) -> list[tuple[int, Notice]]:
    """The notices behind a number, in order, at most so many."""
    found = []
    for key in islice(reader.scan(keys.NOTICE, after=keys.notice(number)), count_max):
        row = reader.get(key)
        assert isinstance(row, ledger_rows.Notice), key
        found.append((keys.parse_number(key), row))
    return found
