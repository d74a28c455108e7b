"""A process with a replica in it that counts as fast as it can, and says on its output what is acknowledged.

Run by `counting.CountingNode`. Each line of output is one acknowledgement: counter, sequence, epoch, led, log and wall
time.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import override

from stepward.server.logbook.journal import rows_of_entry
from stepward.server.logbook.outbox import Instant, Letter, Outbox, ReplicaLimits
from stepward.server.logbook.replica import Replica
from stepward.server.store.lmdb_store import LmdbStore
from tests.logbook import toy

ROWS_WRITTEN = 3


class KillingStore(LmdbStore):
    """Ends its process, as kill -9 does, right before or right after one of its commits."""

    commits_left: int
    before: bool

    @override
    def commit(self) -> None:
        self.commits_left -= self._dirty
        if self.before and self.commits_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit()
        if self.commits_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class LateReplica(Replica):
    """What the flush before the outbox is for: this one flushes at the beginning of the next step instead."""

    @override
    def step(self, now: Instant, inbox: Sequence[Letter]) -> Outbox:
        self._store.commit()
        return super().step(now, inbox)

    @override
    def _flush_before_outbox(self) -> None:
        pass


def now() -> Instant:
    return Instant(time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000, time.time_ns() // 1_000_000)


def open_store(arguments: argparse.Namespace) -> LmdbStore:
    if arguments.kill_at_commit:
        killing = KillingStore(arguments.directory, log_bytes=arguments.log_bytes, rows_of_entry=rows_of_entry)
        killing.commits_left, killing.before = arguments.kill_at_commit, arguments.kill_before
        return killing
    durable = arguments.variant != "no-flush"
    return LmdbStore(arguments.directory, durable=durable, log_bytes=arguments.log_bytes, rows_of_entry=rows_of_entry)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--variant", choices=["whole", "no-flush", "late-flush"], default="whole")
    parser.add_argument("--kill-at-commit", type=int, default=0)
    parser.add_argument("--kill-before", action="store_true")
    parser.add_argument("--journal-entries", type=int, default=4_096)
    # Small enough that the data is written now and then; 0: with every commit.
    parser.add_argument("--log-bytes", type=int, default=64 << 10)
    arguments = parser.parse_args()
    store = open_store(arguments)
    replica = toy.start(
        store,
        kind=LateReplica if arguments.variant == "late-flush" else Replica,
        now=now(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        limits=ReplicaLimits(journal_entries_max=arguments.journal_entries),
    )
    count(replica)


def count(replica: Replica) -> None:
    chance = random.Random(os.getpid())
    while True:
        inbox = toy.proposals(*[toy.Add(rows_written=ROWS_WRITTEN)] * chance.randrange(1, 4))
        outbox = replica.step(now(), inbox)
        for answered in outbox.answers:
            head = outbox.standing.head
            clocks = f"{head.led_ms} {head.log_ms} {head.wall_ms}"
            sys.stdout.write(f"{toy.counted(answered.answer).counter} {head.sequence} {head.epoch} {clocks}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
