"""One side of a transfer of very many rows, as a process of its own, whose memory can be looked at.

    python -m tests.server.rows_process give DIRECTORY ROWS     prints its address, gives rows until its input ends
    python -m tests.server.rows_process get DIRECTORY ADDRESS   gets them once, and prints how many and how long it took

At its end each prints how much memory it has had: of its own, and with the pages of its files.
"""

import asyncio
import sys
import time
from pathlib import Path

import grpc.aio

from stepward.server import observe
from stepward.server.store.lmdb_store import LmdbStore
from tests.server.row_hosts import Giver, filled, getting
from tests.store.standing import stand

PUT_AT_ONCE = 10_000


def memory_mib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith(field))


def forget_memory() -> None:
    """Begin to count the most anew: what filling a store has cost is not what giving costs."""
    Path("/proc/self/clear_refs").write_text("5")


def make(directory: Path, count: int) -> LmdbStore:
    """So many rows of about 200 bytes."""
    store = LmdbStore(directory, create=True)
    stand(store, sequence=7, index=70, term=3)
    for first in range(0, count, PUT_AT_ONCE):
        store.apply(
            ((b"O%012d" % number, b"%d" % number + bytes(180)) for number in range(first, first + PUT_AT_ONCE)), []
        )
        store.commit()
    return store


async def give(directory: Path, count: int) -> None:
    make(directory, count).close()
    forget_memory()
    giver = Giver(LmdbStore(directory))
    async with giver.running():
        sys.stdout.write(f"127.0.0.1:{giver.port}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
    sys.stdout.write(f"{memory_mib('RssAnon')} {memory_mib('VmHWM')}\n")


async def get(directory: Path, address: str) -> None:
    store = filled(directory, sequence=2, index=20, count=10)
    async with grpc.aio.insecure_channel(address) as channel, getting(store, giver=channel) as getter:
        began = time.monotonic()
        getter.shard.need("giver")
        await getter.shard.until(lambda: getter.counters.fetches, within_s=120)
        took_s = time.monotonic() - began
    memory = f"{memory_mib('RssAnon')} {memory_mib('VmHWM')}"
    # Which maps all of them.
    count = store.count(b"")
    store.close()
    sys.stdout.write(f"{count} {took_s:.1f} {memory}\n")


if __name__ == "__main__":
    observe.configure_logging("warning")
    side, folder, argument = sys.argv[1:]
    asyncio.run(give(Path(folder), int(argument)) if side == "give" else get(Path(folder), argument))
