"""Which leaderships have lost their supervisor, told by rows alone, and what follows from three of them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stepward.server.core import epochs, keys, rows
from stepward.server.core.brake import LOCKED_LOOK_MS
from stepward.server.core.clocks import Clocks
from stepward.server.core.commands import SilenceWatched, Started, Sweep, Swept, WatchSilence
from stepward.server.core.epoch_rows import Epoch
from stepward.server.core.epochs import GOOD_MS, LOST_MAX, LOST_WINDOW_MS, SILENCE_MS_MAX
from stepward.server.core.rows import DefinitionBody
from tests.core.world import World, step_spec
from tests.scenarios.trips import renew, single, world_with

BEAT_MS = 1_000


def head(led_ms: int, *, epoch: int, log_ms: int | None = None) -> rows.Head:
    """The last batch of a leadership."""
    return rows.Head(
        sequence=1,
        hash=b"",
        epoch=epoch,
        incarnation=1,
        led_ms=led_ms,
        log_ms=led_ms if log_ms is None else log_ms,
        wall_ms=0,
        decided_steady_ms=0,
        boot_id="",
    )


def beat(led_ms: int, *, epoch: int) -> rows.Beat:
    return rows.Beat(epoch=epoch, beats=1, wall_ms=0, led_ms=led_ms, log_ms=led_ms, overdue=0, remediations=0)


def opened(world: World, after: rows.Head, *, gap_ms: int = 0) -> Epoch:
    """The next leadership, as its first batch writes it; `world` has its row from then on."""
    clocks = Clocks(after.led_ms, after.log_ms + gap_ms, 0)
    row = epochs.opened(world.reader, after, epoch=after.epoch + 1, clocks=clocks)
    world.put(keys.EPOCH, row)
    return row


def test_first_leadership_knows_of_none() -> None:
    world = World()

    assert opened(world, head(0, epoch=0)) == Epoch(1, 0)


@pytest.mark.parametrize(
    ("beaten_ms", "led_ms", "is_lost"),
    [
        # It has beaten within the bound, or just not.
        (10_000, 10_000 + SILENCE_MS_MAX - 1, False),
        (10_000, 10_000 + SILENCE_MS_MAX, True),
        # It has never beaten since it began at 5,000: it has as long for that.
        (None, 5_000 + SILENCE_MS_MAX - 1, False),
        (None, 5_000 + SILENCE_MS_MAX, True),
    ],
)
def test_leadership_that_led_too_long_without_a_beat_has_lost_its_supervisor(
    beaten_ms: int | None, led_ms: int, is_lost: bool
) -> None:
    """By its own clocks: how long the cluster was without a leader afterwards counts for nothing."""
    world = World()
    world.put(keys.EPOCH, Epoch(7, 5_000, led_ms=5_000))
    world.put(keys.BEAT, beat(4_900 if beaten_ms is None else beaten_ms, epoch=6 if beaten_ms is None else 7))

    row = opened(world, head(led_ms, epoch=7), gap_ms=50_000)

    assert row == Epoch(8, led_ms + 50_000, led_ms=led_ms, lost_log_ms=(led_ms,) if is_lost else ())


def lose(world: World, *, epoch: int, led_ms: int) -> int:
    """A leadership that began at `led_ms` and lost its supervisor at once; when it ends."""
    ends_ms = led_ms + SILENCE_MS_MAX
    opened(world, head(ends_ms, epoch=epoch))
    return ends_ms


def lose_all(world: World, count: int) -> int:
    world.put(keys.EPOCH, Epoch(1, 0))
    led_ms = 0
    for epoch in range(1, count + 1):
        led_ms = lose(world, epoch=epoch, led_ms=led_ms)
    return led_ms


def row_of(world: World) -> Epoch:
    row = world.reader.get(keys.EPOCH)
    assert isinstance(row, Epoch)
    return row


def test_leadership_stays_after_three_that_lost_their_supervisor() -> None:
    """Two are no reason yet; and it stays so in later leaderships, however long after."""
    world = World()
    lose_all(world, LOST_MAX - 1)
    two = row_of(world)
    led_ms = lose_all(world, LOST_MAX)
    three = row_of(world)
    much_later = opened(world, head(led_ms + 1, epoch=4), gap_ms=10 * LOST_WINDOW_MS)

    assert (len(two.lost_log_ms), two.stays) == (LOST_MAX - 1, False)
    assert (len(three.lost_log_ms), three.stays) == (LOST_MAX, True)
    assert (much_later.lost_log_ms, much_later.stays) == ((), True)


@pytest.mark.parametrize(("age_ms", "stays"), [(LOST_WINDOW_MS - 1, True), (LOST_WINDOW_MS, False)])
def test_only_those_of_the_last_minute_count(age_ms: int, stays: bool) -> None:
    """On log time: hours without a leader between them make three of them no series."""
    world = World()
    world.put(keys.EPOCH, Epoch(3, 100_000, led_ms=9_000, lost_log_ms=(100_000, 110_000)))
    ends = head(9_000 + SILENCE_MS_MAX, epoch=3, log_ms=100_000 + age_ms)

    assert opened(world, ends).stays is stays


def test_number_of_lost_ones_that_are_kept_is_bounded() -> None:
    """Three are enough to know all there is to know."""
    world = World()
    lose_all(world, 10)

    assert len(row_of(world).lost_log_ms) == LOST_MAX


def test_silence_is_written_down_and_moves_the_clocks() -> None:
    """Nothing else may come while a supervisor hangs, and then no later leader could see how long that was."""
    world = World()
    world.put(keys.EPOCH, Epoch(1, 0))
    world.now_ms = 1_499
    early = world.one(WatchSilence(1_500)), dict(world.changes)
    world.now_ms = 1_500
    late = world.one(WatchSilence(1_500)), dict(world.changes)

    assert early == (SilenceWatched(1_499), {})
    assert late == (SilenceWatched(1_500), {keys.EPOCH: Epoch(1, 0, watched_led_ms=1_500)})


def test_beat_that_comes_first_ends_the_silence() -> None:
    """Both may share a batch, in either order of the log."""
    world = World()
    world.put(keys.EPOCH, Epoch(1, 0))
    world.now_ms = 9_000
    _, watched = world.do(Sweep(10), WatchSilence(1_500))

    assert watched == SilenceWatched(0)
    assert keys.EPOCH not in world.changes


def sweep_for(world: World, ms: int) -> None:
    until_ms = world.now_ms + ms
    while world.now_ms < until_ms:
        world.now_ms += BEAT_MS
        world.one(Sweep(10))


def staying(world: World) -> None:
    """Rows of a cluster whose leadership stays."""
    world.put(keys.EPOCH, Epoch(1, 0, lost_log_ms=(0, 0, 0), stays=True))
    world.one(Sweep(10))


def test_nothing_is_remedied_until_a_supervisor_is_trusted() -> None:
    """A lost session, a bound in time and a queue that nobody serves wait; a session that lives needs no remedy."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Started())
    world.open("agent-two", ("other",))
    world.define(DefinitionBody("alone", (replace(step_spec("alone"), queue_ms=5_000),), b"", b""))
    world.submit("j2", "alone")
    world.put(keys.EPOCH, Epoch(1, 0, lost_log_ms=(0, 0, 0), stays=True))
    swept = world.one(Sweep(10))
    for world.now_ms in range(0, GOOD_MS, BEAT_MS):
        renew(world, "agent-two")
        swept = world.one(Sweep(10))
    waiting = world.step_state("j1", "pay"), world.step_state("j2", "alone")
    sessions = {key[1:] for key in world.reader.scan(keys.SESSION)}
    silent = world.reader.get(keys.session("agent-one"))
    for _ in range(20):
        world.now_ms += BEAT_MS
        renew(world, "agent-two")
        world.one(Sweep(10))

    assert isinstance(swept, Swept)
    assert (swept.overdue, swept.held, swept.look_again_in_ms) == (3, 3, LOCKED_LOOK_MS)
    assert waiting == ("RUNNING", "READY")
    assert sessions == {b"agent-one", b"agent-two"}
    # It may come back: nobody has decided that it is lost.
    assert isinstance(silent, rows.Session)
    assert not silent.ending
    assert world.step_state("j1", "pay") not in ("RUNNING", "OFFERED")
    assert world.job_state("j2") == "COMPENSATED"
    assert [key[1:] for key in world.reader.scan(keys.SESSION)] == [b"agent-two"]


def test_a_good_minute_brings_trust_back() -> None:
    """Not a beat sooner."""
    world = World()
    staying(world)
    sweep_for(world, GOOD_MS - BEAT_MS)
    before = row_of(world)
    sweep_for(world, BEAT_MS)

    assert (before.stays, before.lost_log_ms) == (True, (0, 0, 0))
    assert (row_of(world).stays, row_of(world).lost_log_ms) == (False, ())


def test_gap_between_beats_begins_the_minute_anew() -> None:
    """To the last millisecond."""
    world = World()
    staying(world)
    sweep_for(world, GOOD_MS - BEAT_MS)
    world.now_ms += SILENCE_MS_MAX
    world.one(Sweep(10))
    sweep_for(world, GOOD_MS - BEAT_MS)
    after_gap = row_of(world).stays
    sweep_for(world, BEAT_MS)

    assert (after_gap, row_of(world).stays) == (True, False)


@pytest.mark.parametrize(
    ("silent_ms", "stays"),
    [
        # Of each leadership the last beat, and the first one of the next.
        (SILENCE_MS_MAX - 1, False),
        (SILENCE_MS_MAX, True),
    ],
)
def test_minute_goes_on_over_leaderships_that_have_their_supervisors(silent_ms: int, stays: bool) -> None:
    """Leaders change again and again for another reason: remedies must not stay off for ever. A gap is one there."""
    world = World()
    staying(world)
    for epoch in (2, 3, 4):
        sweep_for(world, 18 * BEAT_MS)
        world.epoch = epoch
        world.put(keys.EPOCH, replace(row_of(world), epoch=epoch, led_ms=world.now_ms))
        world.now_ms += silent_ms
        world.one(Sweep(10))
        assert row_of(world).stays is (epoch < 4 or stays)
