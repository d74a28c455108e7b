"""Directories of three nodes behind which lie very many jobs that have ended: written by three shipped replicas.

The rows of one job are those that the rules make when it is submitted, given to an agent and reported. Of each of the
others they are the same under its own id, so that a hundred thousand jobs are there within seconds; they travel through
the log in batches, and each replica applies them, as it would have done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from stepward.server.core import keys
from stepward.server.core.commands import Command, StreamClosed, Succeeded
from stepward.server.core.decide import Decision, Moment
from stepward.server.core.reader import Reader
from stepward.server.core.rows import JobCounts, JobState, Payload, Row
from stepward.server.store.lmdb_store import LmdbStore
from tests.core.definitions import compiled, step, trip
from tests.core.world import WALL_MS, World
from tests.logbook import toy
from tests.logbook.trio import IDS, Trio

# A batch is at most some MiB.
JOBS_A_BATCH: Final = 2_000
S_MAX: Final = 120
# What all of them ran.
ACTION: Final = "book"
OUTPUT: Final = b'{"booking":"LHR-TRN"}'


class Happened(Command, frozen=True):
    """So many jobs have run and ended, from this number on."""

    first: int
    count: int


def past_job_id(number: int) -> str:
    """The id of a job that has ended."""
    return f"0-{WALL_MS << 80 | 7 << 76 | 2 << 62 | number:032x}"


class Past:
    """The rows of jobs that have ended."""

    def __init__(self) -> None:
        body = compiled(trip(step(ACTION)))
        world = World()
        world.define(body)
        world.open("agent", (ACTION,), queue=body.steps[0].queue)
        self._job_id = past_job_id(0)
        world.submit(self._job_id, body.name)
        assert world.report("agent", self._job_id, ACTION, Succeeded(Payload(OUTPUT))) == "RECORDED"
        assert world.progress(self._job_id).state is JobState.COMPLETED
        name = self._job_id.encode()
        found = {key: world.store.get(key) or b"" for key in world.store.scan(b"")}
        self._of_job = {key: value for key, value in found.items() if name in key}
        kinds = (keys.DEFINITION, keys.DEFINITION_HEAD, keys.DEFINITION_BODY)
        self._once = {key: keys.decode_row(key, value) for key, value in found.items() if key[:1] in kinds}

    def of_job(self, job_id: str) -> Iterator[tuple[bytes, Row]]:
        """All rows of one job."""
        before, after = self._job_id.encode(), job_id.encode()
        for key, value in self._of_job.items():
            renamed = key.replace(before, after)
            yield renamed, keys.decode_row(renamed, value.replace(before, after))

    def decide(self, _reader: Reader, commands: Sequence[Command], _moment: Moment) -> Decision:
        """What stands in the place of the rules: each command is a piece of the past."""
        changes: dict[bytes, Row | None] = dict(self._once)
        for command in commands:
            assert isinstance(command, Happened), command
            ended = command.first + command.count
            for number in range(command.first, ended):
                changes.update(self.of_job(past_job_id(number)))
            changes[keys.job_counts("default")] = JobCounts({JobState.COMPLETED: ended})
        # An answer that says nothing.
        return Decision(changes, [StreamClosed() for _ in commands], [])


def write_past(folder: Path, count: int) -> None:
    """Make a new cluster of which each node has a directory in `folder`, and in its rows so many jobs that have ended.

    The logs are as long as logs become. Nothing was flushed, which only a power cut would show.
    """
    past = Past()
    stores = {node_id: LmdbStore(folder / node_id, create=True, durable=False) for node_id in IDS}
    trio = Trio(stores=stores, decider=past.decide)
    for machine in trio.machines.values():
        machine.wall_offset_ms = time.time_ns() // 1_000_000 - toy.START.wall_ms - trio.ms
    for first in range(0, count, JOBS_A_BATCH):
        trio.write(Happened(first, min(JOBS_A_BATCH, count - first)))
    trio.settle()
    for replica in [trio.replica(node_id) for node_id in IDS]:
        replica.close()
