"""Which incidents and which remedies a list shows, and the walks over them.

Numbers of incidents, and sequences of batches, rise with the wall clock of the rows, which never goes back; so does an
epoch. So a walk goes on behind a place that never changes, and ends where nothing older, or newer, can match.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from stepward.server.core import incidents, keys, ledger_rows, rows
from stepward.server.core.parts import By, Remedy, Trouble

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepward.server.core.ledger_rows import Incident, LedgerEntry
    from stepward.server.core.reader import Reader


class IncidentFilter(Struct, frozen=True):
    """Which incidents of a namespace. Everything that is said must hold. `is_open` None: all. Labels are sorted pairs.

    `number_max` is the newest that is meant.
    """

    namespace: str
    is_open: bool | None = True
    definition_name: str = ""
    step_id: str = ""
    job_id: str = ""
    trouble: Trouble | None = None
    opened_from_wall_ms: int | None = None
    opened_before_wall_ms: int | None = None
    labels: tuple[tuple[str, str], ...] = ()
    proposed_only: bool = False
    number_max: int | None = None


class MetIncident(NamedTuple):
    """An incident that a walk has come to. `incident` is None when it does not match."""

    number: int
    incident: Incident | None


def walk(reader: Reader, filter_: IncidentFilter, *, before: int = 0) -> Iterator[MetIncident]:
    """Incidents that may match, the newest first, from before a number on; 0: from the newest.

    Lazily, and also those that do not match: the caller stops when he has enough, or has looked at enough.
    """
    if filter_.number_max is not None:
        before = min(before or filter_.number_max + 1, filter_.number_max + 1)
    prefix = _narrowest(filter_)
    end = prefix + before.to_bytes(8, "big") if before else b""
    for key in reader.scan(prefix, before=end, reverse=True):
        number = keys.parse_number(key)
        incident = incidents.find(reader, number)
        assert incident is not None, key
        since_ms = filter_.opened_from_wall_ms
        if since_ms is not None and incident.opened_wall_ms < since_ms:
            return
        yield MetIncident(number, incident if _matches(reader, filter_, incident) else None)


def _narrowest(filter_: IncidentFilter) -> bytes:
    """The index with the fewest others."""
    if filter_.job_id:
        return keys.incidents_of(filter_.job_id)
    return keys.incidents_open(filter_.namespace) if filter_.is_open else keys.INCIDENT


def _matches(reader: Reader, filter_: IncidentFilter, incident: Incident) -> bool:
    if incident.namespace != filter_.namespace:
        return False
    if filter_.is_open is not None and filter_.is_open is bool(incident.resolved_wall_ms):
        return False
    if filter_.definition_name and incident.definition_name != filter_.definition_name:
        return False
    if filter_.step_id and incident.step_id != filter_.step_id:
        return False
    if filter_.trouble is not None and incident.trouble is not filter_.trouble:
        return False
    if filter_.proposed_only and incident.proposed is Remedy.NONE:
        return False
    before_ms = filter_.opened_before_wall_ms
    if before_ms is not None and incident.opened_wall_ms >= before_ms:
        return False
    return not filter_.labels or _has_labels(reader, incident.job_id, filter_.labels)


def _has_labels(reader: Reader, job_id: str, labels: tuple[tuple[str, str], ...]) -> bool:
    """A job that is being removed has no labels any more."""
    job = reader.get(keys.job(job_id))
    return isinstance(job, rows.Job) and all(job.labels.get(key) == value for key, value in labels)


class LedgerFilter(Struct, frozen=True):
    """Which remedies of a namespace. Everything that is said must hold."""

    namespace: str
    job_id: str = ""
    epoch: int = 0
    trouble: Trouble | None = None
    remedy: Remedy | None = None
    by: By | None = None
    definition_name: str = ""
    from_wall_ms: int | None = None
    before_wall_ms: int | None = None


class MetEntry(NamedTuple):
    """An entry that a walk has come to, and its key. `entry` is None when it does not match."""

    key: bytes
    entry: LedgerEntry | None


def walk_ledger(
    reader: Reader, filter_: LedgerFilter, *, behind: bytes = b"", oldest_first: bool = False
) -> Iterator[MetEntry]:
    """Entries that may match, in one order or the other, from behind a key on."""
    for key in _ledger_keys(reader, filter_, behind, oldest_first=oldest_first):
        entry = _entry(reader, key)
        if _is_beyond(filter_, entry, oldest_first=oldest_first):
            return
        yield MetEntry(key, entry if _entry_matches(filter_, entry) else None)


def _ledger_keys(reader: Reader, filter_: LedgerFilter, behind: bytes, *, oldest_first: bool) -> Iterator[bytes]:
    if filter_.job_id and reader.get(keys.job(filter_.job_id)) is not None:
        yield from _keys_of_job(reader, filter_.job_id, behind, oldest_first=oldest_first)
    elif oldest_first:
        first = b"" if behind or filter_.from_wall_ms is None else _first_from(reader, filter_.from_wall_ms)
        # What `after` names is left out, so a place before the first is meant.
        yield from reader.scan(keys.LEDGER, after=behind or (_just_before(first) if first else b""))
    else:
        end = b"" if behind or filter_.before_wall_ms is None else _first_from(reader, filter_.before_wall_ms)
        yield from reader.scan(keys.LEDGER, before=behind or end, reverse=True)


def _keys_of_job(reader: Reader, job_id: str, behind: bytes, *, oldest_first: bool) -> Iterator[bytes]:
    """A remedy of a job is told in its history, too, so the batches of that are those to look into."""
    prefix = keys.histories(job_id)
    at = prefix + keys.parse_ledger(behind)[0].to_bytes(8, "big") if behind else b""
    if oldest_first:
        told = reader.scan(prefix, after=_just_before(at) if at else b"")
    else:
        told = reader.scan(prefix, before=at + b"\0" if at else b"", reverse=True)
    for key in told:
        batch = keys.ledgers(keys.parse_number(key))
        found = list(reader.scan(batch))
        for entry in found if oldest_first else reversed(found):
            if not behind or (entry > behind if oldest_first else entry < behind):
                yield entry


def _just_before(key: bytes) -> bytes:
    """What no key of this length stands between and `key`: the number that it ends with, less one."""
    return (int.from_bytes(key, "big") - 1).to_bytes(len(key), "big")


def _first_from(reader: Reader, wall_ms: int) -> bytes:
    """The key of the first entry of a moment or later; empty when all are older. Some forty looks."""
    first, last = next(reader.scan(keys.LEDGER), None), next(reader.scan(keys.LEDGER, reverse=True), None)
    if first is None or last is None or _entry(reader, last).wall_ms < wall_ms:
        return b""
    low, high = keys.parse_ledger(first)[0], keys.parse_ledger(last)[0]
    while low < high:
        middle = (low + high) // 2
        # The first entry of this batch or a later one; there is one, since the last is late enough.
        found = next(reader.scan(keys.LEDGER, after=keys.ledgers(middle)))
        if _entry(reader, found).wall_ms < wall_ms:
            low = keys.parse_ledger(found)[0] + 1
        else:
            high = middle
    return next(reader.scan(keys.LEDGER, after=keys.ledgers(low)))


def _entry(reader: Reader, key: bytes) -> LedgerEntry:
    entry = reader.get(key)
    assert isinstance(entry, ledger_rows.LedgerEntry), key
    return entry


def _is_beyond(filter_: LedgerFilter, entry: LedgerEntry, *, oldest_first: bool) -> bool:
    """Whether nothing that comes behind an entry can match."""
    if oldest_first:
        past = filter_.before_wall_ms is not None and entry.wall_ms >= filter_.before_wall_ms
        return past or (filter_.epoch > 0 and entry.epoch > filter_.epoch)
    past = filter_.from_wall_ms is not None and entry.wall_ms < filter_.from_wall_ms
    return past or entry.epoch < filter_.epoch


def _entry_matches(filter_: LedgerFilter, entry: LedgerEntry) -> bool:
    return (
        entry.namespace == filter_.namespace
        and filter_.job_id in ("", entry.job_id)
        and filter_.epoch in (0, entry.epoch)
        and filter_.trouble in (None, entry.trouble)
        and filter_.remedy in (None, entry.remedy)
        and filter_.by in (None, entry.by)
        and filter_.definition_name in ("", entry.definition_name)
        and (filter_.from_wall_ms is None or entry.wall_ms >= filter_.from_wall_ms)
        and (filter_.before_wall_ms is None or entry.wall_ms < filter_.before_wall_ms)
    )
