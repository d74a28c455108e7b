"""What the logbook gives on this machine, for reading: the only bounds are far from anything that was measured."""

import time
from pathlib import Path

import pytest

from stepward.server.core import keys, rows
from stepward.server.logbook.identity import create_cluster
from stepward.server.store.live import LiveRows
from stepward.server.store.lmdb_store import LmdbStore
from stepward.server.store.memory import MemoryStore
from tests.logbook import toy
from tests.logbook.counting_node import now

SECONDS = 2.0


@pytest.mark.slow
@pytest.mark.parametrize("commands", [1, 10, 100])
def test_batches_a_second(tmp_path: Path, commands: int) -> None:
    """Commands of eight rows each, flushed on the disk under the temporary folder."""
    create_cluster(tmp_path, "n1")
    replica = toy.start(LmdbStore(tmp_path), now=now())
    inbox = toy.proposals(*[toy.Add(rows_written=7, row_bytes=100)] * commands)
    replica.step(now(), [])
    batches, begin, begin_cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < SECONDS:
        batches += len(replica.step(now(), inbox).applied)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    replica.close()
    print(
        f"\n{commands} commands a batch: {batches / seconds:.0f} batches/s, {batches * commands / seconds:.0f} "
        f"commands/s, {cpu / batches * 1e6:.0f} us of CPU a batch"
    )

    assert batches > 20


@pytest.mark.slow
def test_idle_steps_cost_nothing() -> None:
    replica = toy.start(toy.new_store())
    steps = 10_000
    begin = time.process_time()
    for ms in range(0, steps * 100, 100):
        replica.step(toy.at(ms), [])
    each = (time.process_time() - begin) / steps
    print(f"\nan idle step costs {each * 1e6:.1f} us of CPU, ten a second")

    assert each * 10 < 0.01


@pytest.mark.slow
def test_row_in_the_cache() -> None:
    store = MemoryStore()
    live = LiveRows(store)
    key = keys.progress("1-0123456789abcdef")
    live.applied({key: rows.Progress(rows.JobState.RUNNING, 1, 1, 1)})
    reads = 1_000_000
    begin = time.process_time()
    for _ in range(reads):
        live.get(key)
    each = (time.process_time() - begin) / reads
    print(f"\na cached row costs {each * 1e9:.0f} ns")

    assert each < 1e-6
