"""How much the disk of this node can still take, and what follows from it.

A write that fails half-way ends the process, and one that starts again with a full disk ends again. So a leader decides
nothing, and a follower takes no entries, long before the disk is full; both stay, say so, and go on when there is room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepward.server.logbook.engine import Engine
    from stepward.server.logbook.outbox import ReplicaLimits
    from stepward.server.store.interface import Store


class Room:
    """Of one store. The disk is asked now and then, since that is a call of the system."""

    def __init__(self, store: Store, limits: ReplicaLimits, *, now_ms: int) -> None:
        self._store = store
        self._limits = limits
        self._free_bytes, self._asked_at_ms = store.free_bytes(), now_ms
        self._takes_entries = True

    def free_bytes(self, now_ms: int) -> int:
        """How much could still be written a moment ago."""
        if now_ms - self._asked_at_ms >= self._limits.free_bytes_age_ms:
            self._free_bytes, self._asked_at_ms = self._store.free_bytes(), now_ms
        return self._free_bytes

    def takes_entries(self, now_ms: int) -> bool:
        """Whether a follower may take entries of its leader. Once it may not, there has to be room for a while."""
        limits = self._limits
        least = limits.free_bytes_follower_min if self._takes_entries else limits.free_bytes_min
        self._takes_entries = self.free_bytes(now_ms) >= least
        return self._takes_entries


class FullDisk:
    """Why a leader decides nothing, and what it does about it."""

    def __init__(self, room: Room, engine: Engine, limits: ReplicaLimits, *, now_ms: int) -> None:
        self._room = room
        self._engine = engine
        self._limits = limits
        self._hand_over_at_ms = now_ms

    def why(self, now_ms: int) -> str:
        """Why there is no room for another batch, here or on the disks of a majority; empty when there is.

        What this node alone has no room for would be decided and never committed: a full disk here, or on too many
        others, is found before anybody waits for it. One other that is full is a node lost, which a majority bears.
        """
        least, free = self._limits.free_bytes_min, self._room.free_bytes(now_ms)
        needed = f"{least / 2**20:g} MiB are needed to go on: free some"
        if free < least:
            self._hand_over(now_ms)
            return f"{free / 2**20:g} MiB of disk are free; {needed}"
        majority = self._engine.majority_free_bytes()
        if majority is None or majority >= least:
            return ""
        return f"{majority / 2**20:g} MiB of disk are free on the nodes that would make a majority; {needed}"

    def _hand_over(self, now_ms: int) -> None:
        """Let another node lead, whose disk has room. Not all the time: leadership may come back for other reasons."""
        if now_ms < self._hand_over_at_ms:
            return
        if not self._engine.transfer("", now_ms, free_bytes_min=self._limits.free_bytes_min):
            self._hand_over_at_ms = now_ms + self._limits.full_disk_leads_ms
