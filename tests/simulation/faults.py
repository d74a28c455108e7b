"""What goes wrong, and when: the nemesis of one run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from tests.simulation.agenda import MS, SECOND

if TYPE_CHECKING:
    from tests.simulation.world import World

# How often each kind is drawn.
KINDS: Final = {
    "kill": 3,
    "kill_all": 1,
    "power": 2,
    "power_all": 2,
    "again": 1,
    "pause": 3,
    "partition": 2,
    "one_way": 2,
    "deaf": 1,
    "pair": 2,
    "slow": 2,
    "reset": 1,
    "wipe": 1,
    "transfer": 3,
    "blink": 1,
    "doom": 2,
    "stale_leader": 1,
    "majority_wipe": 1,
    "garble": 1,
    "slow_disk": 2,
    "wall": 0.5,
    "kill_agent": 2,
    "pause_agent": 2,
    "cut_agent": 2,
}


class Faults:
    """Draws faults one after another until all is healed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self.counts: Counter[str] = Counter()
        self._storm = True
        self.broken_how = ""
        self._every_us = self._rng.choice((500, 1_000, 2_000)) * MS
        self.off: frozenset[str] = frozenset()

    def begin(self, *, after_us: int) -> None:
        """Let the storm begin."""
        self._world.agenda.after(after_us + self._rng.expovariate(1 / self._every_us), self._next)

    def heal(self) -> None:
        """Nothing goes wrong any more, and what was broken works again."""
        self._storm = False
        world = self._world
        world.network.heal()
        for machine in world.machines.values():
            machine.start()
            assert machine.process is not None
            machine.process.resume()
        for agent in world.agents:
            agent.start()
            agent.resume()

    def heal_but_one(self) -> str:
        """All but one node works again, which is gone or cut off. Empty: the others need it to find out what was."""
        world, rng = self._world, self._rng
        broken = rng.choice(world.node_ids)
        if any(world.in_quarantine(name) for name in world.node_ids if name != broken):
            return ""
        self.heal()
        machine = world.machines[broken]
        self.broken_how = rng.choice(("down", "cut off", "deaf", "mute", "paused"))
        match self.broken_how:
            case "down":
                machine.kill()
            case "paused":
                assert machine.process is not None
                machine.process.pause()
            case how:
                for other in world.node_ids:
                    if other != broken and how != "mute":
                        world.network.cut(other, broken)
                    if other != broken and how != "deaf":
                        world.network.cut(broken, other)
        return broken

    def _next(self) -> None:
        if not self._storm:
            return
        kinds = [kind for kind in KINDS if kind not in self.off and (self._world.agents or "agent" not in kind)]
        kind = self._rng.choices(kinds, [KINDS[kind] for kind in kinds])[0]
        x, y, z = self._cast()
        self._world.trace("fault", kind, f"{x} {y} {z}")
        self.counts[kind] += 1
        getattr(self, f"_{kind}")(x, y, z)
        self.begin(after_us=0)

    def _cast(self) -> tuple[str, str, str]:
        """Who plays which part: half of the time the leader is the first."""
        world, rng = self._world, self._rng
        names = rng.sample(world.node_ids, 3)
        leading = [name for name in names if (process := world.machines[name].process) and process.leads]
        if leading and rng.random() < 0.5:
            names.remove(leading[0])
            names.insert(0, leading[0])
        return names[0], names[1], names[2]

    def _later(self, seconds: float, act: object, *arguments: object) -> None:
        """Do something later, unless all is healed by then."""

        def if_storm() -> None:
            if self._storm:
                act(*arguments)  # type: ignore[operator]  # all that is given is called

        self._world.agenda.after(seconds * SECOND, if_storm)

    def _start_later(self, name: str, seconds: float) -> None:
        self._later(seconds, self._world.machines[name].start)

    # Kinds. x is the one to whom it happens.

    def _kill(self, x: str, y: str, z: str) -> None:
        self._world.machines[x].kill()
        self._start_later(x, self._rng.uniform(0.02, 2))

    def _kill_all(self, x: str, y: str, z: str) -> None:
        for name in (x, y, z):
            self._world.machines[name].kill()
            self._start_later(name, self._rng.uniform(0.02, 2))

    def _power(self, x: str, y: str, z: str) -> None:
        self._world.machines[x].cut_power()
        self._start_later(x, self._rng.uniform(0.05, 4))

    def _power_all(self, x: str, y: str, z: str) -> None:
        for name in (x, y, z):
            self._world.machines[name].cut_power()
            self._start_later(name, self._rng.uniform(0.05, 2))

    def _again(self, x: str, y: str, z: str) -> None:
        """A node that is killed again and again while it starts."""
        for number in range(4):
            self._later(number * 0.5, self._world.machines[x].kill)
            self._later(number * 0.5 + self._rng.uniform(0.02, 0.2), self._world.machines[x].start)

    def _pause(self, x: str, y: str, z: str) -> None:
        self._stop_for(x, self._rng.uniform(0.05, 4))

    def _stop_for(self, name: str, seconds: float) -> None:
        process = self._world.machines[name].process
        if process is not None:
            process.pause()
            self._later(seconds, process.resume)

    def _partition(self, x: str, y: str, z: str) -> None:
        self._cut([(x, y), (y, x), (x, z), (z, x)], self._rng.uniform(0.1, 4))

    def _one_way(self, x: str, y: str, z: str) -> None:
        self._cut([self._rng.choice(((x, y), (y, x)))], self._rng.uniform(0.1, 4))

    def _deaf(self, x: str, y: str, z: str) -> None:
        self._cut([(y, x), (z, x)], self._rng.uniform(0.1, 4))

    def _pair(self, x: str, y: str, z: str) -> None:
        self._cut([(x, y), (y, x)], self._rng.uniform(0.1, 4))

    def _cut(self, ways: list[tuple[str, str]], seconds: float) -> None:
        network = self._world.network
        for way in ways:
            network.cut(*way)
            self._later(seconds, network.mend, *way)

    def _slow(self, x: str, y: str, z: str) -> None:
        seconds = self._rng.uniform(0.5, 4)
        for way in ((x, y), (y, x)):
            self._world.network.slow_down(*way, int(self._rng.uniform(20 * MS, 400 * MS)))
            self._later(seconds, self._world.network.slow_down, *way, 0)

    def _reset(self, x: str, y: str, z: str) -> None:
        for connection in self._world.network.connections(x, y):
            connection.close()

    def _garble(self, x: str, y: str, z: str) -> None:
        """What one says to another arrives as nonsense."""
        self._world.network.garble(x, y, self._rng.randint(1, 3))

    def _wipe(self, x: str, y: str, z: str) -> None:
        """A disk is lost. Only one at a time: with two gone, nobody knows what they had promised."""
        world = self._world
        if any(world.in_quarantine(name) for name in (x, z)):
            return
        world.machines[y].wipe()
        self.counts["wiped"] += 1
        self._start_later(y, self._rng.choice((0.01, self._rng.uniform(0.02, 2))))

    def _transfer(self, x: str, y: str, z: str) -> None:
        process = self._world.machines[x].process
        if process is not None:
            process.transfer(self._rng.choice(("", y, z)))

    def _blink(self, x: str, y: str, z: str) -> None:
        """The second cannot hear the first, and the third restarts within milliseconds, again and again."""
        self._cut([(x, y), (y, x)], 2.5)
        for number in range(7):
            self._later(0.2 + number * 0.3, self._world.machines[z].kill)
            self._later(0.21 + number * 0.3, self._world.machines[z].start)

    def _doom(self, x: str, y: str, z: str) -> None:
        """A leader that is cut off collects entries that nobody else will hold, and restarts."""
        self._cut([(x, y), (y, x), (x, z), (z, x)], self._rng.uniform(0.3, 2))
        if self._rng.random() < 0.5:
            self._later(self._rng.uniform(0.3, 2), self._world.machines[x].kill)
            self._later(2, self._world.machines[x].start)

    def _stale_leader(self, x: str, y: str, z: str) -> None:
        """The first stands still; the others go on; the second loses its disk; the first wakes up and sees only it."""
        seconds = self._rng.uniform(0.7, 2.5)
        self._cut([(x, z), (z, x)], seconds + self._rng.uniform(0.5, 3))
        self._stop_for(x, seconds)

        def lose() -> None:
            self._wipe(x, y, z)
            self._cut([(y, z), (z, y)], self._rng.uniform(0.5, 3))

        self._later(seconds - self._rng.uniform(0, 0.3), lose)

    def _majority_wipe(self, x: str, y: str, z: str) -> None:
        """The first commits with the second alone, whose disk is lost; the first ends while it catches up."""
        seconds = self._rng.uniform(0.3, 1.5)
        self._cut([(x, z), (z, x)], seconds + self._rng.choice((self._rng.uniform(0.1, 1.5), 3)))
        self._later(seconds, self._wipe, x, y, z)
        self._later(seconds + self._rng.uniform(0.05, 1), self._world.machines[x].kill)
        self._start_later(x, seconds + self._rng.uniform(1.5, 4))

    def _slow_disk(self, x: str, y: str, z: str) -> None:
        self._world.machines[x].device.flush_us_next = int(self._rng.uniform(100 * MS, 2_000 * MS))

    def _wall(self, x: str, y: str, z: str) -> None:
        self._world.oracle.walls_jumped = True
        self._world.machines[x].clock.jump_wall(self._rng.choice((-600_000, 600_000, -5_000, 5_000)))

    def _kill_agent(self, x: str, y: str, z: str) -> None:
        agent = self._rng.choice(self._world.agents)
        agent.kill()
        self._later(self._rng.uniform(0.1, 2), agent.start)

    def _pause_agent(self, x: str, y: str, z: str) -> None:
        agent = self._rng.choice(self._world.agents)
        agent.pause()
        self._later(self._rng.uniform(0.5, 6), agent.resume)

    def _cut_agent(self, x: str, y: str, z: str) -> None:
        agent = self._rng.choice(self._world.agents)
        self._cut([(agent.name, x), (x, agent.name)], self._rng.uniform(0.5, 5))
