"""Starting and ending counting nodes, and looking at what they left."""

import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from stepward.server.core import keys, rows
from stepward.server.core.clocks import LED_STEP_MS_MAX
from stepward.server.logbook import batch as batches
from stepward.server.logbook import engine
from stepward.server.logbook.batch import Batch, Verdict
from stepward.server.logbook.journal import rows_of_entry
from stepward.server.store import facts
from stepward.server.store.interface import Store
from stepward.server.store.live import CommittedRows
from stepward.server.store.lmdb_store import LmdbStore
from tests.logbook import toy
from tests.logbook.counting_node import ROWS_WRITTEN

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 60


class Acknowledged(NamedTuple):
    """One line of a counting node. The first ever is NOTHING."""

    counter: int
    sequence: int
    epoch: int
    led_ms: int
    log_ms: int
    wall_ms: int


NOTHING = Acknowledged(0, 0, 0, 0, 0, 0)


class CountingNode:
    """A process that counts until it is ended. `acknowledged` is the last thing that it said."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.acknowledged = NOTHING
        self.lines = 0
        command = [sys.executable, "-m", "tests.logbook.counting_node", str(directory), *arguments]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # The last line of a process that was killed may be torn.
            if line.endswith("\n"):
                self.acknowledged = Acknowledged(*map(int, line.split()))
                self.lines += 1

    def wait_for_lines(self, lines: int) -> None:
        """Until it has acknowledged so often."""
        deadline = time.monotonic() + SECONDS_MAX
        while self.lines < lines:
            assert self._process.poll() is None, self.end()
            assert time.monotonic() < deadline, f"{self.lines} of {lines} lines in {SECONDS_MAX} s"
            self._reader.join(0.001)

    def kill(self) -> None:
        """As kill -9 does, and wait until it is gone."""
        self._process.kill()
        self.end()

    def end(self) -> str:
        """Wait until it has ended by itself; gives what it said on its error output."""
        self._process.wait(SECONDS_MAX)
        self._reader.join()
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        with self._process.stdout, self._process.stderr:
            return self._process.stderr.read()


def check(directory: Path, acknowledged: Acknowledged) -> int:
    """Look at what a node left: nothing acknowledged is lost, and all of it fits together. Gives the counter."""
    store = LmdbStore(directory, rows_of_entry=rows_of_entry)
    try:
        counter = toy.count(CommittedRows(store))
        head = facts.read_head(store)
        assert counter >= acknowledged.counter, "acknowledged counts are lost"
        assert head.sequence >= acknowledged.sequence
        assert (head.epoch, head.led_ms, head.log_ms, head.wall_ms) >= acknowledged[2:]
        assert head.led_ms >= acknowledged.led_ms
        assert head.log_ms >= acknowledged.log_ms
        assert head.wall_ms >= acknowledged.wall_ms
        check_rows(store, counter)
        check_chain(store, head)
        return counter
    finally:
        store.close()


def check_rows(store: Store, counter: int) -> None:
    """Each batch is there whole: a count with all rows that were written beside it, and none of a later count."""
    found = list(store.scan(keys.OUTPUT))
    assert len(found) == counter * ROWS_WRITTEN
    for number in range(1, counter + 1, max(1, counter // 100)):
        row = CommittedRows(store).get(keys.output(f"1-{number:016x}", ROWS_WRITTEN - 1))
        assert isinstance(row, rows.Output)
        assert row.payload.data[:8] == number.to_bytes(8, "big")


def check_chain(store: Store, head: rows.Head) -> None:
    """The journal is one chain that ends at the head, on clocks that never went back."""
    commands = [entry.command for entry in toy.journal(store)[:] if entry.command[:1] == engine.REGULAR]
    hashes = [batches.hash_of(command[1:]) for command in commands]
    chain = [batches.decode(command[1:]) for command in commands]
    if not chain:
        assert head.sequence == 0, "the journal lost the head's batch"
        return
    assert (chain[-1].sequence, hashes[-1]) == (head.sequence, head.hash)
    for (before, after), batch_hash in zip(pairwise(chain), hashes, strict=False):
        assert batches.judge(batches.head_after(before, batch_hash), after) is Verdict.APPLY
        check_clocks(before, after)


def check_clocks(before: Batch, after: Batch) -> None:
    """All of it happened within one boot, so every step is exact, the gaps between two leaderships too."""
    passed_ms = after.decided_steady_ms - before.decided_steady_ms
    assert passed_ms >= 0
    assert after.log_ms - before.log_ms == passed_ms
    led_ms = min(passed_ms, LED_STEP_MS_MAX) if after.epoch == before.epoch else 0
    assert after.led_ms - before.led_ms == led_ms
    assert after.epoch - before.epoch in {0, 1}
    assert after.wall_ms >= before.wall_ms
