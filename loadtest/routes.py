"""The nodes as users of generated stubs go to them: to the next one when one is away."""

from __future__ import annotations

import itertools

import grpc

from loadtest.submitters import CHANNEL_OPTIONS


class Route:
    """One connection at a time."""

    def __init__(self, addresses: str, first: int = 0) -> None:
        """`addresses`: those of all nodes, behind commas; `first` which of them, counted around, is gone to first."""
        each = addresses.split(",")
        turn = first % len(each)
        self._turns = itertools.cycle((*each[turn:], *each[:turn]))
        self.address = next(self._turns)
        self.channel = grpc.insecure_channel(self.address, CHANNEL_OPTIONS)

    def go_on(self) -> None:
        """Go to the next node."""
        self.close()
        self.address = next(self._turns)
        self.channel = grpc.insecure_channel(self.address, CHANNEL_OPTIONS)

    def close(self) -> None:
        """Hang up."""
        self.channel.close()
