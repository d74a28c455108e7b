"""What a process tells monitoring before it is a node that takes part: that it lives, and what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.server.metrics import Beginnings
from stepward.server.probes import Probes

if TYPE_CHECKING:
    from stepward.server.config import NodeConfig

_STARTING: Final = "the node is starting"


class Beginning:
    """The pages of a process from its start on. Made and told on the loop; read on any thread."""

    def __init__(self, config: NodeConfig, *, version: str) -> None:
        """Answer at once, where the configuration wants it.

        Raises:
            ProbesAddressTaken: The address of the pages cannot be listened on.
        """
        self.waits_for = _STARTING
        self.is_empty = False
        self.probes: Probes | None = None
        if config.http_port is not None:
            metrics = Beginnings(config.node_id, version, is_empty=lambda: self.is_empty)
            self.probes = Probes(
                config.http_host, config.http_port, metrics=metrics.text, unhealthy=str, unready=lambda: self.waits_for
            )
            self.probes.start()

    @property
    def address(self) -> str:
        """Where the pages are; empty: nowhere."""
        return self.probes.address if self.probes is not None else ""

    def wait_for(self, reason: str) -> None:
        """It knows no cluster; `reason` says why it does not become one of one."""
        self.is_empty = True
        self.waits_for = f"the node knows no cluster yet: {reason}"

    def wait_for_room(self, reason: str) -> None:
        """Its disk is full; `reason` says how full."""
        self.waits_for = reason

    def go_on(self) -> None:
        """What it waited for has come, and it is about to take part."""
        self.is_empty = False
        self.waits_for = _STARTING

    def stop(self) -> None:
        """Answer no more. Safe to repeat."""
        if self.probes is not None:
            self.probes.stop()
