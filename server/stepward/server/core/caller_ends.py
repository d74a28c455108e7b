"""The ends of the jobs of a caller, in the order of batches, so that he can be told of all of them on one stream.

Only jobs that were submitted with a caller id have them: one row for all that end in one batch, which is less than a
row a job. A job's progress says in which row it stands, so it is found again when it ends after it has waited for a
person, and when it is removed. What is no longer there leaves a mark: whoever comes from before it cannot be told
everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from stepward.server.core import keys
from stepward.server.core.caller_rows import CallerEnds, EndsGone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepward.server.core.batch import Batch
    from stepward.server.core.draft import Draft
    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import Job, Progress


class Ends(NamedTuple):
    """What ended in one batch."""

    sequence: int
    job_ids: tuple[str, ...]


def add(batch: Batch, job_id: str, job: Job, progress: Progress) -> Progress:
    """Let the caller of a job, if it has one, be told that it has ended, or waits for a person; its progress then.

    What he was to be told of it before is withdrawn: it is no longer so.
    """
    sequence = batch.moment.sequence
    if not job.caller_id or progress.told_sequence == sequence:
        return progress
    if progress.told_sequence:
        _withdraw(batch.draft, job_id, job.caller_id, progress.told_sequence)
    key = keys.caller_ends(job.caller_id, sequence)
    row = batch.draft.read(key, CallerEnds)
    batch.draft.put(key, CallerEnds((job_id,) if row is None else (*row.job_ids, job_id)))
    return replace(progress, told_sequence=sequence)


def remove(batch: Batch, job_id: str, job: Job, progress: Progress) -> None:
    """A job vanishes, and with it what its caller was to be told of it."""
    if not progress.told_sequence:
        return
    _withdraw(batch.draft, job_id, job.caller_id, progress.told_sequence)
    if progress.told_sequence > gone_sequence(batch.draft):
        batch.draft.put(keys.ENDS_GONE, EndsGone(progress.told_sequence))


def _withdraw(draft: Draft, job_id: str, caller_id: str, sequence: int) -> None:
    key = keys.caller_ends(caller_id, sequence)
    left = tuple(one for one in draft.require(key, CallerEnds).job_ids if one != job_id)
    if left:
        draft.put(key, CallerEnds(left))
    else:
        draft.delete(key)


def behind(reader: Reader, caller_id: str, sequence: int) -> Iterator[Ends]:
    """What ended behind a batch, oldest first, as far as it is still there."""
    prefix = keys.ends_of_caller(caller_id)
    for key in reader.scan(prefix, after=keys.caller_ends(caller_id, sequence)):
        row = reader.get(key)
        assert isinstance(row, CallerEnds), key
        yield Ends(keys.parse_number(key), row.job_ids)


def gone_sequence(reader: Reader | Draft) -> int:
    """Up to which batch ends may be missing."""
    row = reader.get(keys.ENDS_GONE)
    assert row is None or isinstance(row, EndsGone)
    return 0 if row is None else row.sequence
