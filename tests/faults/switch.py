"""The wires between hosts of their own, as a process: `python -m tests.faults.switch HOST=PID=ADDRESS ...`.

The kernels of small machines lack what delays packets, so each host gets a TUN device, and its packets travel through
here. Between any two hosts and in each direction they can be lost, all or some, and delayed.

A line of JSON on stdin, `{"from": .., "to": .., "lost": 0.3, "delay_ms": 40, "jitter_ms": 10}`, says how it is from now
on; `{}` asks what was lost so far. Each is answered by a line on stdout. It ends with its input.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

# From <linux/if_tun.h>: a device whose packets begin with their IP header.
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000
_CLONE_NEWNET: Final = 0x40000000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

# Large packets, since each costs time here.
MTU_BYTES: Final = 16_000
_DESTINATION: Final = slice(16, 20)
_VERSION_4: Final = 4
_PACKETS_A_TURN: Final = 64
_COMMAND_S_MAX: Final = 30


class Rule(NamedTuple):
    """How packets of one host to another fare."""

    lost: float = 0.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0


class Switch:
    """Carries packets between devices."""

    def __init__(self, hosts: dict[str, tuple[str, bytes]]) -> None:
        """Make a device in each host: of the process id whose network it is, at an address."""
        self._names = {_device(pid, address): name for name, (pid, address) in hosts.items()}
        self._devices = {name: device for device, name in self._names.items()}
        self._by_address = {address: name for name, (_, address) in hosts.items()}
        self._rules: dict[tuple[str, str], Rule] = {}
        self._lost: Counter[str] = Counter()
        self._late: list[tuple[float, int, str, bytes]] = []
        self._numbers = itertools.count()
        self._chance = random.Random(0)

    def run(self) -> None:
        """Carry until stdin ends."""
        poll = select.epoll()
        for device in (*self._names, sys.stdin.fileno()):
            poll.register(device, select.EPOLLIN)
        while True:
            wait_s = max(0.0, self._late[0][0] - time.monotonic()) if self._late else -1
            for device, _ in poll.poll(wait_s):
                if device in self._names:
                    self._take(device)
                elif not (line := sys.stdin.readline()):
                    return
                else:
                    self._obey(json.loads(line))
            while self._late and self._late[0][0] <= time.monotonic():
                _, _, name, packet = heapq.heappop(self._late)
                self._hand_over(name, packet)

    def _take(self, device: int) -> None:
        for _ in range(_PACKETS_A_TURN):
            try:
                packet = os.read(device, MTU_BYTES)
            except BlockingIOError:
                return
            to = self._by_address.get(packet[_DESTINATION])
            # What the kernel says to everybody (IPv6 and the like) is for nobody here.
            if to is not None and packet[0] >> 4 == _VERSION_4:
                self._carry(self._names[device], to, packet)

    def _carry(self, sender: str, to: str, packet: bytes) -> None:
        rule = self._rules.get((sender, to))
        if rule is None:
            self._hand_over(to, packet)
        elif self._chance.random() < rule.lost:
            self._lost[f"{sender}>{to}"] += 1
        else:
            due_at = time.monotonic() + (rule.delay_ms + self._chance.random() * rule.jitter_ms) / 1_000
            heapq.heappush(self._late, (due_at, next(self._numbers), to, packet))

    def _hand_over(self, name: str, packet: bytes) -> None:
        try:
            os.write(self._devices[name], packet)
        except BlockingIOError:
            # As a full queue of a real switch.
            self._lost[f">{name}"] += 1

    def _obey(self, order: dict[str, Any]) -> None:
        if order:
            sender, to = order.pop("from"), order.pop("to")
            self._rules[sender, to] = Rule(**order)
            if self._rules[sender, to] == Rule():
                del self._rules[sender, to]
        print(json.dumps(self._lost), flush=True)


def _device(pid: str, address: bytes) -> int:
    """A device in the network of a process; it goes when this process ends."""
    home, there = os.open("/proc/self/ns/net", os.O_RDONLY), os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    _enter(there)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    # The kernel numbers it, and tells how.
    named = fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"wire%d", _IFF_TUN | _IFF_NO_PI))
    name = named[:16].rstrip(b"\0").decode()
    for command in (
        ("ip", "addr", "add", f"{socket.inet_ntoa(address)}/24", "dev", name),
        ("ip", "link", "set", name, "mtu", str(MTU_BYTES), "up"),
    ):
        subprocess.run(command, check=True, timeout=_COMMAND_S_MAX)
    _enter(home)
    os.close(home)
    os.close(there)
    return device


def _enter(network: int) -> None:
    if _LIBC.setns(network, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "the network of another process cannot be entered: is this root?")


if __name__ == "__main__":
    assert Path("/dev/net/tun").exists(), "this kernel has no TUN devices"
    told = [host.split("=") for host in sys.argv[1:]]
    switch = Switch({name: (pid, socket.inet_aton(address)) for name, pid, address in told})
    print(json.dumps({}), flush=True)
    switch.run()
