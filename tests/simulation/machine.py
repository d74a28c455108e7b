"""A machine: its disk, its clocks, and the server process that runs on it or does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.clocks import MachineClock
from tests.simulation.disk import Device
from tests.simulation.oracle import short
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.world import World


class Machine:
    """One node's machine."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.clock = MachineClock(world.agenda, world.process_rng, name)
        self.device = Device(world.disk_rng)
        self.process: Process | None = None

    @property
    def up(self) -> bool:
        """Whether a server process runs."""
        return self.process is not None

    def start(self) -> None:
        """Start the server, unless it runs."""
        if self.process is None:
            self.process = Process(self)
            self.world.trace(self.name, "starts", short(self.process.standing))

    def kill(self) -> None:
        """The process ends at once (kill -9); the machine goes on."""
        if self.process is not None:
            self.world.trace(self.name, "is killed", "")
            self.process.end(silently=False)
            self.process = None
            self.device.kill()

    def cut_power(self) -> None:
        """The machine ends at once, and boots when the server starts again."""
        self.world.trace(self.name, "loses power", "")
        if self.process is not None:
            self.process.end(silently=True)
            self.process = None
        self.device.cut_power()
        self.clock.reboot()
        self.world.oracle.reboots += 1

    def wipe(self) -> None:
        """The disk is lost, and an empty one takes its place."""
        self.cut_power()
        self.device = Device(self.world.disk_rng)
        self.world.oracle.wiped(self.name)
        self.world.join(self)
