"""The batch as it travels: rows to put and to delete, decided on exactly one predecessor.

The logbook is a hash chain: a batch names its sequence and the hash of the batch on which it was decided. So one
comparison is the conditional write of the whole system, and equal hashes at equal sequence prove that replicas agree.
The leader encodes a batch once; everybody else writes its rows as bytes that they never decode.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Final

import msgspec
from msgspec import Struct

from stepward.server.core import rows
from stepward.server.logbook.errors import BatchUnreadable


class Batch(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=1):
    """An atomic set of row changes. The tag is the format version.

    `parent` is the hash of the batch that has the sequence before. `decided_steady_ms` is on the steady clock of the
    boot `boot_id`.
    """

    sequence: int
    parent: bytes
    epoch: int
    incarnation: int
    led_ms: int
    log_ms: int
    wall_ms: int
    decided_steady_ms: int
    boot_id: str
    puts: list[tuple[bytes, bytes]]
    deletes: list[bytes]


class Verdict(Enum):
    """What a replica does with a batch."""

    APPLY = "APPLY"
    STALE = "STALE"
    DIVERGED = "DIVERGED"


encode: Final = msgspec.msgpack.Encoder().encode
# Raises msgspec.DecodeError, of which a format that is not ours is a kind.
decode: Final = msgspec.msgpack.Decoder(Batch).decode


def hash_of(encoded: bytes | memoryview) -> bytes:
    """The hash of an encoded batch. It covers the parent's hash, and so the whole logbook before it."""
    return hashlib.sha256(encoded).digest()


def read(index: int, encoded: memoryview) -> tuple[Batch, bytes]:
    """A batch that came from elsewhere in the entry of that index, and its hash.

    Raises:
        BatchUnreadable: It is none that this software knows.
    """
    try:
        return decode(encoded), hash_of(encoded)
    except msgspec.DecodeError as error:
        raise BatchUnreadable(index, str(error)) from error


def judge(head: rows.Head, batch: Batch) -> Verdict:
    """Whether `batch` continues the chain at `head`.

    Stale are those of a deposed leader, replays, and entries older than what was installed: they are skipped.
    Whatever is neither stale nor next shows that replicas have come apart.
    """
    if batch.sequence <= head.sequence:
        return Verdict.STALE
    if batch.sequence == head.sequence + 1 and batch.parent == head.hash:
        return Verdict.APPLY
    return Verdict.DIVERGED


def head_after(batch: Batch, batch_hash: bytes) -> rows.Head:
    """The head once `batch` is applied."""
    return rows.Head(
        sequence=batch.sequence,
        hash=batch_hash,
        epoch=batch.epoch,
        incarnation=batch.incarnation,
        led_ms=batch.led_ms,
        log_ms=batch.log_ms,
        wall_ms=batch.wall_ms,
        decided_steady_ms=batch.decided_steady_ms,
        boot_id=batch.boot_id,
    )


def genesis(cluster_id: str, *, incarnation: int, wall_ms: int) -> rows.Head:
    """The head before the first batch. Its hash is the cluster's own, so that no batch of another cluster fits."""
    return rows.Head(
        sequence=0,
        hash=hash_of(b"stepward logbook " + cluster_id.encode()),
        epoch=0,
        incarnation=incarnation,
        led_ms=0,
        log_ms=0,
        wall_ms=wall_ms,
        decided_steady_ms=0,
        boot_id="",
    )
