"""The simulated disk loses what it may lose, and nothing else; the store on it is there as a whole or not at all."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from typing_extensions import override

from stepward.server.store.errors import StoreCorrupt
from tests.simulation.disk import Device, PageStore

SEEDS = 300


def written(store: PageStore, number: int, *, size: int = 1) -> None:
    """One transaction that touches all three spaces."""
    store.apply([(b"row", bytes([number]) * size), (b"row %d" % number, b"there")], [b"row %d" % (number - 3)])
    store.put_fact(b"fact", bytes([number]))
    store.put_entry(number, bytes([number]))
    store.commit()


def held(store: PageStore) -> tuple[bytes | None, bytes | None, int]:
    """What a store holds of it: the row, the fact, and the last entry."""
    return store.get(b"row"), store.fact(b"fact"), max((index for index, _ in store.entries()), default=0)


@pytest.mark.parametrize("crash", [Device.kill, Device.cut_power])
def test_commit_under_way_is_there_as_a_whole_or_not_at_all(crash: object) -> None:
    """And what was finished before is never lost."""
    seen: Counter[int] = Counter()
    for seed in range(SEEDS):
        device = Device(random.Random(seed))
        store = PageStore(device)
        written(store, 1)
        written(store, 2)
        device.settle()
        written(store, 3, size=9_000)
        crash(device)  # type: ignore[operator]  # it is a method of a device
        row, fact, last = held(PageStore(device))

        assert fact in (b"\x02", b"\x03"), seed
        number = fact[0]
        assert row == fact * (9_000 if number == 3 else 1)
        assert last == number
        seen[number] += 1

    assert min(seen[2], seen[3]) > SEEDS // 20, seen


class ForgetfulDevice(Device):
    """One that takes flushes and does nothing about them."""

    @override
    def flush(self) -> None:
        pass


@pytest.mark.parametrize(("device_type", "loses"), [(Device, False), (ForgetfulDevice, True)])
def test_power_cut_takes_what_was_not_flushed(device_type: type[Device], loses: bool) -> None:
    """Without flushes, commits that were finished long ago are lost or in pieces; with them none is."""
    lost = 0
    for seed in range(SEEDS):
        device = device_type(random.Random(seed))
        store = PageStore(device)
        for number in (1, 2, 3):
            written(store, number)
            device.settle()
        device.cut_power()
        try:
            lost += held(PageStore(device))[2] < 3
        except StoreCorrupt:
            lost += 1

    assert lost > SEEDS // 2 if loses else lost == 0


def test_kill_takes_nothing_that_was_written() -> None:
    """The system still has it, flushed or not."""
    device = ForgetfulDevice(random.Random(1))
    store = PageStore(device)
    written(store, 1)
    device.settle()
    device.kill()

    assert held(PageStore(device))[2] == 1


def test_what_a_store_shows_when_it_is_opened_is_safe() -> None:
    """Also what the one before it had written and not flushed when it was killed."""
    for seed in range(SEEDS):
        device = Device(random.Random(seed))
        written(PageStore(device), 1)
        device.kill()
        shown = held(PageStore(device))
        device.cut_power()

        assert held(PageStore(device)) == shown, seed


def test_store_that_is_written_often_is_read_back() -> None:
    """Also when it has begun its chain of commits anew, several times over, and dropped what came before."""
    device = Device(random.Random(1))
    store = PageStore(device)
    for number in range(1, 1_000):
        store.apply([(b"row", b"%d" % number), (b"row %d" % number, b"")], [b"row %d" % (number - 3)])
        store.commit()
        device.settle()

        if number % 97 == 0:
            store = PageStore(device)
            assert store.get(b"row") == b"%d" % number
            assert store.count(b"row ") == 3

    assert device.pages < 1_000


def test_slow_flush_takes_its_time_once() -> None:
    device = Device(random.Random(1))
    store = PageStore(device)
    device.flush_us_next = 900_000
    written(store, 1)
    assert device.take_took_us() > 900_000

    written(store, 2)

    assert 0 < device.take_took_us() < 10_000
