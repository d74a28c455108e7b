"""One replica of one shard, as an actor: `step(now, inbox)` gives an outbox.

It owns the write transaction, the raft engine and the decisions, and has no thread, no clock and no socket of its own;
whoever hosts it calls `step` from the one thread on which it was made. Everything that the outbox holds is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from stepward.server.core.commands import Answer, Command
    from stepward.server.core.decide import Decision, Moment
    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import Head, Row
    from stepward.server.logbook.identity import Identity
    from stepward.server.store.interface import Store
    from stepward.server.store.live import CommittedRows


class Instant(NamedTuple):
    """What a host's clocks say. `steady_ms` counts suspension (CLOCK_BOOTTIME) and belongs to one boot."""

    steady_ms: int
    wall_ms: int


class Proposal(NamedTuple):
    """A command that someone waits for. `token` is the host's own, and comes back with the answer."""

    token: object
    command: Command


class Answered(NamedTuple):
    """What became of a proposal: exactly one for each.

    A Rejection NOT_LEADER or OVERLOADED says that it was never proposed; COMMIT_UNKNOWN says that nobody knows. An
    answer of any other kind was decided on the rows of `sequence`, or is itself part of that batch.
    """

    token: object
    answer: Answer
    sequence: int


class Applied(NamedTuple):
    """A batch that is applied and durable.

    `changes` are the decoded rows (None: deleted) when this leader decided the batch; None when it came from
    elsewhere, and then `puts` and `deletes` say the same in bytes. The batch that opens an epoch changes no row.
    """

    sequence: int
    epoch: int
    changes: Mapping[bytes, Row | None] | None
    puts: Sequence[tuple[bytes, bytes]]
    deletes: Sequence[bytes]


class Standing(NamedTuple):
    """What a replica is at the end of a step. `leads`: its epoch is open and it decides commands."""

    leads: bool
    epoch: int
    term: int
    head: Head


class Outbox(NamedTuple):
    """What a step gave. `wake_at_ms` is the steady instant at which `step` wants to be called again, at the latest."""

    answers: Sequence[Answered]
    applied: Sequence[Applied]
    standing: Standing
    wake_at_ms: int


class Decider(Protocol):
    """The rules: `core.decide.decide` with its limits and its chance filled in."""

    def __call__(self, reader: Reader, commands: Sequence[Command], moment: Moment, /) -> Decision: ...


class Replica:
    """The replica of one node in one shard.

    Args:
        store: Opened by the caller, on this thread; closed by `close`.
        identity: Who this node is; made by `create_cluster`, read by `open_identity`.
        decider: Called with committed rows while no batch is in flight.
        boot_id: Names the boot to which `steady_ms` belongs.
        now: The moment of the start.
        on_failure: Told of each command whose rule raised, for the log.
    """

    def __init__(
        self,
        *,
        store: Store,
        identity: Identity,
        decider: Decider,
        boot_id: str,
        now: Instant,
        on_failure: Callable[[object, BaseException], None],
    ) -> None:
        raise NotImplementedError

    def step(self, now: Instant, inbox: Sequence[Proposal]) -> Outbox:
        """Take in proposals, move the engine, decide at most one batch, flush, and say what came of it.

        Never waits for anything but the disk. Cheap when there is nothing to do.

        Raises:
            Diverged: The logbook holds a batch that does not continue ours. Nothing more will be applied or served;
                the files are kept for a person.
            ReplicaStopped: An earlier step raised; the process has to end.
        """
        raise NotImplementedError

    @property
    def standing(self) -> Standing:
        """What this replica was at the end of the last step."""
        raise NotImplementedError

    def committed(self) -> AbstractContextManager[CommittedRows]:
        """The rows as the last step left them, for calls that read. Any thread may ask."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the files. What no step has flushed is lost, and was never answered. Safe to repeat."""
        raise NotImplementedError
