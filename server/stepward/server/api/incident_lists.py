"""Pages of incidents and of the ledger: work that may be much, so it goes in slices, and every answer is bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.server.api import pages, slices, supervision_messages
from stepward.server.core import incident_lists, incidents, keys, ledger

if TYPE_CHECKING:
    from stepward.server.core.incident_lists import IncidentFilter, LedgerFilter
    from stepward.server.reading import Reading
    from stepward.v1 import supervision_service_pb2

# Rows that one page looks at, at most; the page token goes on behind them.
SCANNED_MAX: Final = 10_000
# As many digits as a number of eight bytes may have.
_DIGITS_MAX: Final = 19


class IncidentPage:
    """A page of incidents that is being made. `last` is the number behind which it goes on; 0: from the newest."""

    def __init__(self, wanted: IncidentFilter, count_max: int, *, before: int) -> None:
        self.incidents: list[supervision_service_pb2.Incident] = []
        self.last = before
        self.ended = False
        self.open = 0
        self._wanted = wanted
        self._count_max = count_max
        self._scanned = 0
        self._size_bytes = 0

    def look_on(self, reader: Reading) -> bool:
        """Look at some more incidents; True when the page is made."""
        slice_ = slices.Slice()
        self.open = incidents.counts(reader).open
        for met in incident_lists.walk(reader, self._wanted, before=self.last):
            # Only another one shows that there is a page behind this one.
            if _is_full(len(self.incidents), self._count_max, self._scanned, self._size_bytes):
                return True
            self.last = met.number
            self._scanned += 1
            if met.incident is not None:
                message = supervision_messages.incident(met.number, met.incident)
                self.incidents.append(message)
                self._size_bytes += message.ByteSize()
            if slice_.is_over:
                return False
        self.ended = True
        return True


class LedgerPage:
    """A page of the ledger that is being made. `last` is the key behind which it goes on; empty: from the beginning."""

    def __init__(self, wanted: LedgerFilter, count_max: int, *, behind: bytes, oldest_first: bool) -> None:
        self.entries: list[supervision_service_pb2.LedgerEntry] = []
        self.last = behind
        self.ended = False
        self.recorded = 0
        self._wanted = wanted
        self._count_max = count_max
        self._oldest_first = oldest_first
        self._scanned = 0
        self._size_bytes = 0

    def look_on(self, reader: Reading) -> bool:
        """Look at some more entries; True when the page is made."""
        slice_ = slices.Slice()
        self.recorded = ledger.recorded(reader)
        walk = incident_lists.walk_ledger(reader, self._wanted, behind=self.last, oldest_first=self._oldest_first)
        for met in walk:
            if _is_full(len(self.entries), self._count_max, self._scanned, self._size_bytes):
                return True
            self.last = met.key
            self._scanned += 1
            if met.entry is not None:
                message = supervision_messages.entry(met.key, met.entry)
                self.entries.append(message)
                self._size_bytes += message.ByteSize()
            if slice_.is_over:
                return False
        self.ended = True
        return True


def _is_full(count: int, count_max: int, scanned: int, size_bytes: int) -> bool:
    return count == count_max or scanned >= SCANNED_MAX or size_bytes >= pages.PAGE_BYTES_MAX


def parse_number(text: str) -> int:
    """The place in a page token of incidents; 0 for an empty one.

    Raises:
        Refused: PAGE_TOKEN_INVALID.
    """
    if not text:
        return 0
    if not _is_number(text):
        raise pages.not_of_this_list()
    return int(text)


def parse_place(text: str) -> bytes:
    """The place in a page token of the ledger, as a key; empty for an empty one.

    Raises:
        Refused: PAGE_TOKEN_INVALID.
    """
    if not text:
        return b""
    sequence, _, number = text.partition(".")
    if not (_is_number(sequence) and _is_number(number) and int(number) < 1 << 16):
        raise pages.not_of_this_list()
    return keys.ledger(int(sequence), int(number))


def place_text(key: bytes) -> str:
    """A key of the ledger as a page token holds it."""
    return "{}.{}".format(*keys.parse_ledger(key)) if key else ""


def _is_number(text: str) -> bool:
    """Whether it is a number that fits into eight bytes; a digest is no secret, so a token may have been made up."""
    return text.isdecimal() and len(text) <= _DIGITS_MAX and int(text) < 1 << 63
