"""Fetching all rows of the leader, when its log begins behind where ours ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stepward.server.logbook.outbox import Fetched

if TYPE_CHECKING:
    from stepward.server.logbook.outbox import Outbox
    from stepward.server.store.interface import Incoming
    from tests.simulation.network import Connection
    from tests.simulation.process import Process

_CHUNK_BYTES: Final = 16_384


class Fetching:
    """One fetch at a time; begun again from the start when anything goes wrong."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._wanted = ""
        self._connecting = False
        self._connection: Connection | None = None
        self._incoming: Incoming | None = None
        self._where: tuple[bytes, int, int] = (b"", 0, 0)
        self._ready: Fetched | None = None

    def follow(self, outbox: Outbox) -> None:
        """Begin when the replica asks for it, and stop when it asks no more."""
        if outbox.fetch_from != self._wanted:
            self._wanted = outbox.fetch_from
            self._stop()
        if self._wanted and self._connection is None and not self._connecting and self._ready is None:
            self._connecting = True
            self._process.world.network.connect(self._process, self._wanted, "export")

    def _stop(self) -> None:
        if self._connection is not None:
            self._connection.close(by=self._process)
        if self._incoming is not None:
            self._incoming.discard()
        self._connection = self._incoming = self._ready = None

    def install_if_ready(self) -> None:
        """Between two steps: hand over what has come."""
        if self._ready is None:
            return
        ready, self._ready = self._ready, None
        process = self._process
        if process.replica.install(ready):
            self._incoming = None
            process.oracle.counts["installed"] += 1
            process.world.trace(process.name, "installs rows", ready.applied_index)
        else:
            self._stop()

    def connected(self, connection: Connection) -> None:
        """The leader is there: ask it for everything."""
        self._connecting = False
        self._connection = connection
        connection.send(self._process, ("ask",), 100)

    def received(self, connection: Connection, message: Any) -> None:
        """Rows, or somebody who asks for them."""
        match message:
            case ("ask",):
                self._export(connection)
            case _ if connection is not self._connection:
                pass
            case ("head", where):
                self._where = where
                self._incoming = self._process.store.incoming()
            case ("rows", chunk):
                assert self._incoming is not None
                self._incoming.put(chunk)
            case ("end",):
                assert self._incoming is not None
                self._incoming.commit()
                self._ready = Fetched(self._incoming, *self._where)
                self._connection = None
                connection.close(by=self._process)
                self._process.wake()
            case _:
                self._stop()

    def _export(self, connection: Connection) -> None:
        process = self._process
        # Its epoch need not be open: it may be that nothing can be committed before somebody has these rows.
        if process.standing.leader_id != process.name:
            connection.send(process, ("no",), 50)
            return
        with process.store.export() as export:
            connection.send(process, ("head", (export.head, export.applied_index, export.applied_term)), 200)
            for chunk in export.chunks(_CHUNK_BYTES):
                connection.send(process, ("rows", chunk), _CHUNK_BYTES)
        connection.send(process, ("end",), 50)

    def closed(self, connection: Connection) -> None:
        """The stream is gone, or did not come to be: begin again when the replica still asks for it."""
        if connection is self._connection:
            self._connection = None
            self._stop()
        elif connection.client is self._process:
            self._connecting = False
