"""What users submitted and what agents did, line by line: what the rows of a cluster are held against at the end.

A line is written before the call that it is about, or as soon as its answer is there, and survives the process.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from stepward.client import JobState

# How many breaches of one kind are told one by one.
TOLD_MAX = 5


class Ledger:
    """The file, written by one process. Without a path nothing is kept but the number of open submissions."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = path.open("ab", buffering=0) if path else None
        self._open: set[str] = set()

    @property
    def open(self) -> int:
        """Submissions whose end nobody has seen, nor given up."""
        return len(self._open)

    def begun(self, key: str, *, definition: str, wanted: JobState) -> None:
        """A job is about to be submitted, and must end so."""
        self._open.add(key)
        self._write(begun=key, definition=definition, wanted=str(wanted))

    def stored(self, key: str, job_id: str) -> None:
        """A server has said that it has the job."""
        self._write(stored=key, job_id=job_id)

    def ended(self, key: str, job_id: str, state: JobState) -> None:
        """A server has said how the job ended."""
        self._open.discard(key)
        self._write(ended=key, job_id=job_id, state=str(state))

    def gave_up(self, key: str) -> None:
        """Nobody waits for the job any more. Unless its end was seen before, it may be stored or not, and go on."""
        if key in self._open:
            self._open.discard(key)
            self._write(abandoned=key)

    def ran(self, key: str) -> None:
        """A handler has had its effect, under the key that its service would know it by."""
        self._write(ran=key)

    def close(self) -> None:
        """No more is written."""
        if self._file is not None:
            self._file.close()

    def _write(self, **line: str) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line).encode() + b"\n")


class Row(NamedTuple):
    """A job as the cluster has stored it."""

    job_id: str
    key: str
    definition: str
    state: JobState


@dataclass
class Told:
    """What a ledger says."""

    begun: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By key of the submission: the definition, and the state in which it must end."""
    job_ids: dict[str, set[str]] = field(default_factory=dict)
    """By key: the jobs that were named to callers."""
    ended: dict[str, str] = field(default_factory=dict)
    """By id of the job: the state that its caller was told."""
    abandoned: set[str] = field(default_factory=set)
    """Keys whose caller has left before the end: a call failed, or the run was over."""
    ran: Counter[str] = field(default_factory=Counter)
    """By key of the effect: how often a handler had it."""


def read(lines: Iterable[bytes]) -> Told:
    """Take in the lines of a ledger."""
    told = Told()
    for text in lines:
        line: Mapping[str, Any] = json.loads(text)
        if "ran" in line:
            told.ran[line["ran"]] += 1
        elif "abandoned" in line:
            told.abandoned.add(line["abandoned"])
        elif "begun" in line:
            told.begun[line["begun"]] = line["definition"], line["wanted"]
        else:
            told.job_ids.setdefault(line.get("stored") or line["ended"], set()).add(line["job_id"])
            if "ended" in line:
                told.ended[line["job_id"]] = line["state"]
    return told


@dataclass(frozen=True)
class Verdict:
    """What was lost, and what was there twice, in words."""

    jobs: int
    effects: int
    lost: Sequence[str]
    duplicated: Sequence[str]

    @property
    def sound(self) -> bool:
        """Whether neither happened."""
        return not self.lost and not self.duplicated

    @property
    def text(self) -> str:
        """For people."""
        head = f"{self.jobs:,} jobs, {self.effects:,} effects, {len(self.lost)} lost, {len(self.duplicated)} duplicated"
        return "\n".join([head, *(f"  {line}" for line in (*self.lost[:TOLD_MAX], *self.duplicated[:TOLD_MAX]))])


def judge(told: Told, rows: Sequence[Row], *, effects: Mapping[str, Sequence[str]]) -> Verdict:
    """Hold what was said and done against what is stored.

    Args:
        told: The ledger.
        rows: All jobs of the cluster.
        effects: By definition: the ends of the keys of all effects that its job must have had, behind the job's id.
    """
    by_id = {row.job_id: row for row in rows}
    lost = [
        f"{key} was acknowledged as {job_id}, which is not stored"
        for key, job_ids in told.job_ids.items()
        for job_id in job_ids
        if job_id not in by_id
    ]
    lost += [
        f"{job_id} was told to have ended {state}, and is {by_id[job_id].state}"
        for job_id, state in told.ended.items()
        if job_id in by_id and by_id[job_id].state != state
    ]
    for row in rows:
        lost += _wrong(row, told, effects)
    keys = Counter(row.key for row in rows)
    duplicated = [f"{key} is stored as {count} jobs" for key, count in keys.items() if count > 1]
    duplicated += [f"{key} was answered as {sorted(ids)}" for key, ids in told.job_ids.items() if len(ids) > 1]
    duplicated += [f"{key} was done {count} times" for key, count in told.ran.items() if count > 1]
    return Verdict(len(rows), told.ran.total(), lost, duplicated)


def _wrong(row: Row, told: Told, effects: Mapping[str, Sequence[str]]) -> list[str]:
    """What is wrong with one job."""
    if row.key not in told.begun:
        return [f"{row.job_id} is stored under {row.key!r}, which nobody has submitted"]
    _, wanted = told.begun[row.key]
    if row.key in told.abandoned and not effects[row.definition] and row.state is JobState.RUNNING:
        # It waits for the caller, and for no agent.
        return []
    if row.state != wanted:
        return [f"{row.job_id} is {row.state}, not {wanted}"]
    missing = [end for end in effects[row.definition] if not told.ran[f"{row.job_id}/{end}"]]
    return [f"{row.job_id} is {row.state} without {missing}"] if missing else []
