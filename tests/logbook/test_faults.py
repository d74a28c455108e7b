"""Three engines under random faults: nothing acknowledged is lost, and what was hurt heals."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from stepward.server.logbook.engine import Engine
from tests.logbook.three import STEP_MS, Host, Three

FAULTS_MS: Final = 60_000
HEALED_MS: Final = 10_000
SEEDS: Final = range(6)
# A node keeps so few entries that one which was away often needs all rows.
ENTRIES_KEPT: Final = 60


class Faults:
    """What goes wrong, and when it is over again."""

    def __init__(self, three: Three) -> None:
        self.three = three
        self.rng = three.rng
        self.agenda: list[tuple[int, int, Callable[[], object]]] = []
        self.counted: Counter[str] = Counter()
        self.kinds = {
            name.removeprefix("fault_"): getattr(self, name) for name in sorted(dir(self)) if name.startswith("fault_")
        }
        self.cuts: Counter[tuple[str, str]] = Counter()
        self._number = 0

    def at(self, after_ms: int, what: Callable[[], object]) -> None:
        self._number += 1
        self.agenda.append((self.three.now_ms + after_ms, self._number, what))

    def due(self) -> None:
        for one in sorted((one for one in self.agenda if one[0] <= self.three.now_ms), key=lambda one: one[:2]):
            self.agenda.remove(one)
            one[2]()

    def one(self) -> None:
        """A fault; about half of them hit the leader."""
        name = self.rng.choice(sorted(self.kinds))
        hosts = list(self.three.hosts.values())
        self.rng.shuffle(hosts)
        leader = self.three.leader
        if leader is not None and self.rng.random() < 0.5:
            hosts.sort(key=lambda host: host is not leader)
        self.counted[name] += 1
        self.kinds[name](*hosts)

    def ms(self, least: float, most: float) -> int:
        return self.rng.randrange(int(least), int(most), STEP_MS)

    def kill(self, host: Host) -> None:
        if host.up:
            host.kill()

    def start(self, host: Host) -> None:
        if not host.up:
            host.start()

    def wipe(self, host: Host) -> bool:
        """Only while all others have everything that they promised."""
        if any(other.quarantined for other in self.three.hosts.values() if other is not host):
            return False
        self.counted["wiped"] += 1
        host.wipe()
        return True

    def cut(self, ms: int, *pairs: tuple[Host, Host]) -> None:
        names = [(sender.node_id, receiver.node_id) for sender, receiver in pairs]

        def heal() -> None:
            self.cuts.subtract(names)
            self.three.cut = {pair for pair, count in self.cuts.items() if count > 0}

        self.cuts.update(names)
        self.three.cut |= set(names)
        self.at(ms, heal)

    def pause(self, host: Host, ms: int) -> None:
        def resume() -> None:
            host.paused = False

        if host.up and not host.paused:
            host.paused = True
            self.at(ms, resume)

    # Each is given the three nodes in an order of chance.

    def fault_kill(self, x: Host, *_: Host) -> None:
        self.kill(x)
        self.at(self.ms(50, 4_000), lambda: self.start(x))

    def fault_kill_all(self, *hosts: Host) -> None:
        for host in hosts:
            self.kill(host)
            self.at(self.ms(50, 3_000), partial(self.start, host))

    def fault_restart_again_and_again(self, x: Host, *_: Host) -> None:
        for turn in range(4):
            self.at(turn * 500 + self.ms(0, 400), lambda: self.kill(x))
            self.at(turn * 500 + 450, lambda: self.start(x))

    def fault_wipe(self, _: Host, y: Host, __: Host) -> None:
        if self.wipe(y):
            self.at(self.ms(50, 4_000), lambda: self.start(y))

    def fault_pause(self, x: Host, *_: Host) -> None:
        self.pause(x, self.ms(100, 5_000))

    def fault_partition(self, x: Host, y: Host, z: Host) -> None:
        self.cut(self.ms(200, 6_000), (x, y), (y, x), (x, z), (z, x))

    def fault_one_way(self, x: Host, y: Host, _: Host) -> None:
        self.cut(self.ms(200, 6_000), self.rng.choice(((x, y), (y, x))))

    def fault_deaf(self, x: Host, y: Host, z: Host) -> None:
        self.cut(self.ms(200, 6_000), (y, x), (z, x))

    def fault_pair(self, x: Host, y: Host, _: Host) -> None:
        self.cut(self.ms(200, 6_000), (x, y), (y, x))

    def fault_delay(self, x: Host, y: Host, _: Host) -> None:
        for pair in ((x.node_id, y.node_id), (y.node_id, x.node_id)):
            self.three.delay_ms[pair] = self.ms(20, 400)
            self.at(self.ms(1_000, 5_000), partial(self.three.delay_ms.pop, pair, None))

    def fault_transfer(self, x: Host, y: Host, _: Host) -> None:
        leader = self.three.leader
        if leader is not None:
            leader.engine.transfer(y.node_id if y is not leader else x.node_id, self.three.now_ms)

    def fault_reset(self, x: Host, y: Host, _: Host) -> None:
        """The stream breaks; what was on it may come late, behind what its successor carries."""
        for sender, receiver in ((x, y), (y, x)):
            late = [
                (sender.node_id, connection, content)
                for connection, content in self.three.close(sender.node_id, receiver.node_id)
            ]

            self.at(self.ms(50, 1_000), partial(self._arrive, receiver, receiver.engine, late))

    @staticmethod
    def _arrive(receiver: Host, engine: Engine, late: list[tuple[str, int, bytes]]) -> None:
        if receiver.up and receiver.engine is engine:
            receiver.inbox.extend(late)

    def fault_slow_disk(self, x: Host, *_: Host) -> None:
        if x.up:
            x.engine.step_down(self.three.now_ms)

    def fault_doomed_entries(self, x: Host, y: Host, z: Host) -> None:
        """A leader that is cut off collects entries that nobody else will hold, and restarts."""
        self.cut(self.ms(300, 2_000), (x, y), (y, x), (x, z), (z, x))
        self.at(self.ms(300, 2_000), lambda: self.kill(x))
        self.at(2_000, lambda: self.start(x))

    def fault_blink(self, x: Host, y: Host, z: Host) -> None:
        """One cannot hear the leader, and the other restarts within a moment, again and again."""
        self.cut(3_500, (x, y), (y, x))
        for turn in range(10):
            self.at(200 + turn * 300, lambda: self.kill(z))
            self.at(210 + turn * 300, lambda: self.start(z))

    def fault_majority_wiped(self, x: Host, y: Host, z: Host) -> None:
        """The leader commits with one alone, which is wiped; the leader fails while that one catches up."""
        after_ms = self.ms(300, 2_000)
        self.cut(after_ms + self.ms(100, 4_000), (x, z), (z, x))

        def gone() -> None:
            if self.wipe(y):
                self.start(y)
                self.at(self.ms(10, 300), lambda: self.kill(x))
                self.at(self.ms(2_000, 6_000), lambda: self.start(x))

        self.at(after_ms, gone)

    def fault_stale_leader(self, x: Host, y: Host, z: Host) -> None:
        """The leader is paused, the others go on, one is wiped, and the leader wakes up and sees only that one."""
        after_ms = self.ms(1_000, 2_800)
        self.cut(after_ms + self.ms(500, 3_000), (x, z), (z, x))
        self.pause(x, after_ms)

        def gone() -> None:
            if self.wipe(y):
                self.start(y)
            self.cut(self.ms(500, 3_000), (y, z), (z, y))

        self.at(after_ms - self.ms(0, 300), gone)


def run(seed: int) -> tuple[Three, Counter[str]]:
    """A minute of faults, then none; everything must be well again soon."""
    three = Three(seed, entries_kept=ENTRIES_KEPT).start()
    faults = Faults(three)
    rng = three.rng
    three.settle()
    next_ms = three.now_ms
    busy = rng.choice((0.1, 0.3, 0.9))
    end_ms = three.now_ms + FAULTS_MS
    while three.now_ms < end_ms:
        if three.now_ms >= next_ms:
            faults.one()
            next_ms = three.now_ms + int(rng.expovariate(1 / 1_800))
        faults.due()
        for host in three.hosts.values():
            if host.up and not host.paused and host.engine.leads and rng.random() < busy:
                three.propose(host, rng.randrange(1, 4))
        three.step()
        fetch_rows(three)
    three.heal()
    for host in three.hosts.values():
        host.paused = False
        faults.start(host)
    heal(three)
    return three, faults.counted


def fetch_rows(three: Three) -> None:
    """Whoever is too far behind gets all rows, if it can reach the leader now."""
    for host in three.hosts.values():
        leader = three.hosts.get(host.engine.behind) if host.up and not host.paused else None
        if leader is None or not leader.up or not leader.engine.leads or three.rng.random() > 0.1:
            continue
        if {(host.node_id, leader.node_id), (leader.node_id, host.node_id)} & three.cut:
            continue
        if leader.journal.applied > host.journal.applied:
            host.install(leader)


def heal(three: Three) -> None:
    """One leads, all take part, nothing is missing anywhere."""

    def whole() -> bool:
        fetch_rows(three)
        return not any(host.quarantined for host in three.hosts.values())

    def all_have(commands: list[bytes]) -> bool:
        fetch_rows(three)
        return three.all_have(commands)

    three.until(whole, ms=HEALED_MS)
    three.until(lambda: three.leader is not None and three.leader.engine.settled, ms=HEALED_MS)
    leader = three.settle()
    commands = three.propose(leader)
    three.until(lambda: all_have(commands), ms=HEALED_MS)
    elections = sum(host.engine.elections for host in three.hosts.values())
    three.run(3_000)
    assert sum(host.engine.elections for host in three.hosts.values()) == elections
    target = three.others(three.settle())[0]
    three.settle().engine.transfer(target.node_id, three.now_ms)
    three.until(lambda: target.engine.leads, ms=500)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_and_everything_heals(seed: int) -> None:
    """`Three` holds each step against what was acknowledged before; here the history goes on until all is well."""
    three, counted = run(seed)

    assert sum(counted.values()) >= 15
    assert len(three.acknowledged) >= 50
