"""The chain: which batch continues it, and that bytes say what was meant."""

import msgspec
import pytest

from stepward.server.core import rows
from stepward.server.logbook import batch as batches
from stepward.server.logbook.batch import Batch, Verdict

HEAD = rows.Head(
    sequence=7,
    hash=b"seven",
    epoch=3,
    incarnation=1,
    led_ms=100,
    log_ms=200,
    wall_ms=300,
    decided_steady_ms=400,
    boot_id="boot",
)


def batch(*, sequence: int = 8, parent: bytes = b"seven") -> Batch:
    """The batch that continues `HEAD`, or one that nearly does."""
    return Batch(
        sequence=sequence,
        parent=parent,
        epoch=3,
        incarnation=1,
        led_ms=110,
        log_ms=210,
        wall_ms=310,
        decided_steady_ms=410,
        boot_id="boot",
        puts=[(b"Pa", b"\x00row")],
        deletes=[b"Pb"],
    )


@pytest.mark.parametrize(
    ("sequence", "parent", "verdict"),
    [
        # The next one, decided on the head.
        (8, b"seven", Verdict.APPLY),
        # The next one, decided on something else: the replicas have come apart.
        (8, b"other", Verdict.DIVERGED),
        (8, b"", Verdict.DIVERGED),
        # A hole: something was applied elsewhere that is missing here.
        (9, b"seven", Verdict.DIVERGED),
        (9, b"eight", Verdict.DIVERGED),
        (1 << 40, b"seven", Verdict.DIVERGED),
        # At or below the head: a deposed leader, a replay, an entry older than an installed snapshot.
        (7, b"six", Verdict.STALE),
        (7, b"seven", Verdict.STALE),
        (6, b"five", Verdict.STALE),
        (1, b"seven", Verdict.STALE),
        (0, b"", Verdict.STALE),
    ],
)
def test_judge(sequence: int, parent: bytes, verdict: Verdict) -> None:
    """Only the next sequence on the head's hash continues the chain."""
    assert batches.judge(HEAD, batch(sequence=sequence, parent=parent)) is verdict


def test_batch_is_read_back() -> None:
    assert batches.decode(batches.encode(batch())) == batch()


def test_bytes_of_a_batch_do_not_change() -> None:
    """They are in logbooks that exist: a change of this text is a new format, with a new number."""
    assert batches.encode(batch()).hex() == (
        "9c0108c405736576656e03016eccd2cd0136cd019aa4626f6f749192c4025061c40400726f7791c4025062"
    )


def test_hash_covers_the_parent() -> None:
    """So equal hashes prove an equal logbook, not only an equal last batch."""
    one, other = batch(parent=b"seven"), batch(parent=b"other")

    assert batches.hash_of(batches.encode(one)) != batches.hash_of(batches.encode(other))


@pytest.mark.parametrize(
    "array",
    [
        # A format of the future.
        [2, 8, b"seven", 3, 1, 110, 210, 310, 410, "boot", [], []],
        # A field that this software does not know would be dropped; it is refused.
        [1, 8, b"seven", 3, 1, 110, 210, 310, 410, "boot", [], [], "more"],
        # A field too few.
        [1, 8, b"seven", 3, 1, 110, 210, 310, 410, "boot", []],
        # A put without a value.
        [1, 8, b"seven", 3, 1, 110, 210, 310, 410, "boot", [[b"Pa"]], []],
    ],
)
def test_batch_that_is_not_ours_is_refused(array: list[object]) -> None:
    with pytest.raises(msgspec.DecodeError):
        batches.decode(msgspec.msgpack.encode(array))


def test_head_after() -> None:
    head = batches.head_after(batch(), b"eight")

    assert head == rows.Head(8, b"eight", 3, 1, 110, 210, 310, 410, "boot")
    assert batches.judge(head, batch(sequence=9, parent=b"eight")) is Verdict.APPLY


def test_clusters_do_not_share_a_beginning() -> None:
    """The first batch of one cluster cannot be applied in another one."""
    one, other = (batches.genesis(cluster, incarnation=1, wall_ms=5) for cluster in ("one", "other"))

    assert one.hash != other.hash
    assert (one.sequence, one.epoch, one.led_ms, one.log_ms, one.wall_ms) == (0, 0, 0, 0, 5)
