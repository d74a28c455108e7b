"""Hosts of their own on this machine, whose wires can be cut, in one direction too, and be slow and lossy.

Each host is a network namespace that a keeper process holds; `outside` is where this process is. Nothing stays: the
keepers and the switch end with their input, and their devices with them. Needs root.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

ROOT: Final = Path(__file__).parents[2]
OUTSIDE: Final = "outside"
_READY_S_MAX: Final = 30
# Set aside for tests of networks (RFC 2544), so that no real host is hidden; one of its subnets is drawn.
_SUBNETS: Final = "198.18"


class Network:
    """Hosts and the wires between them, for use in `with`."""

    def __init__(self, hosts: Iterable[str]) -> None:
        subnet = random.SystemRandom().randrange(256)
        names = [*hosts, OUTSIDE]
        self.addresses = {name: f"{_SUBNETS}.{subnet}.{number}" for number, name in enumerate(names, start=1)}
        """Of every host."""
        self._keepers: dict[str, subprocess.Popen[str]] = {}
        self._switch: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        for name in self.addresses:
            if name != OUTSIDE:
                keep = ("unshare", "--net", "sh", "-c", "ip link set lo up && echo ready && exec cat")
                self._keepers[name] = _start(keep)
        for keeper in self._keepers.values():
            _said(keeper)
        told = [f"{name}={self._pid(name)}={address}" for name, address in self.addresses.items()]
        self._switch = _start((sys.executable, "-m", "tests.faults.switch", *told))
        _said(self._switch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (self._switch, *self._keepers.values()):
            if process is not None:
                process.communicate(timeout=_READY_S_MAX)

    def inside(self, name: str) -> tuple[str, ...]:
        """What stands before a command that shall run on a host."""
        return ("nsenter", f"--net=/proc/{self._pid(name)}/ns/net", "--")

    def wire(self, sender: str, to: str, *, lost: float = 0.0, delay_ms: float = 0.0, jitter_ms: float = 0.0) -> None:
        """Say how packets of one host to another fare from now on. Without words they all arrive at once."""
        self._order({"from": sender, "to": to, "lost": lost, "delay_ms": delay_ms, "jitter_ms": jitter_ms})

    def cut(self, sender: str, to: str) -> None:
        """Lose all packets of one host to another; those of the other direction arrive."""
        self.wire(sender, to, lost=1.0)

    def silence(self, senders: Iterable[str], hearers: Iterable[str]) -> None:
        """Lose all packets of some hosts to others; those of the other direction arrive."""
        for sender, to in itertools.product(senders, hearers):
            self.cut(sender, to)

    def part(self, some: Sequence[str], others: Sequence[str]) -> None:
        """Lose all packets between some hosts and others, in both directions."""
        self.silence(some, others)
        self.silence(others, some)

    def heal(self) -> None:
        """Let all packets of all hosts arrive at once."""
        for sender in self.addresses:
            for to in self.addresses:
                if sender != to:
                    self.wire(sender, to)

    def lost(self, sender: str, to: str) -> int:
        """How many packets of one host to another were lost so far: whether a cut hit anything."""
        return self._order({}).get(f"{sender}>{to}", 0)

    def _pid(self, name: str) -> int | str:
        return self._keepers[name].pid if name != OUTSIDE else "self"

    def _order(self, order: dict[str, object]) -> dict[str, int]:
        assert self._switch is not None, "the network is not up"
        assert self._switch.stdin is not None
        self._switch.stdin.write(json.dumps(order) + "\n")
        self._switch.stdin.flush()
        answer: dict[str, int] = json.loads(_said(self._switch))
        return answer


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def _said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"{process.args!r} ended: is this root, and are iproute2 and TUN devices there?"
    return line
