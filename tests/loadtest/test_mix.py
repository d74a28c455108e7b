"""The long mix in its short form, and what it judges memory by."""

import shutil
from pathlib import Path

import pytest

from loadtest.memory import Course, Sample, growth
from loadtest.mix_file import DEFAULT, MixError, Stage, read, stage_at
from tests.loadtest.stand import run_module


@pytest.mark.slow
def test_mix_loses_nothing_when_the_leader_is_killed(tmp_path: Path) -> None:
    """Half a minute, one kill, users of every kind. How slow is not judged here: other tests run beside it."""
    options = ("--minutes", "0.5", "--kill-every-minutes", "0.2", "--users", "16", "--sample-every-seconds", "2")
    slow = tmp_path / "mix.toml"
    slow.write_text(DEFAULT.read_text().replace("p99_ms_max = 5000.0", "p99_ms_max = 30000.0"))
    ended = run_module("loadtest.mix", *options, "--data", str(tmp_path), "--mix", str(slow), seconds_max=240)

    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert "1 kills of the leader" in ended.stdout
    assert "0 lost, 0 duplicated" in ended.stdout
    names = ("run bench-trip", "submit and poll", "submit and watch bench", "submit and watch 20", "explain", "look")
    assert [name for name in names if f"stepward  {name}" not in ended.stdout] == []
    assert "locust (pid" in ended.stdout


def course(*own_mb: float) -> Course:
    """A process that was looked at every ten seconds."""
    return Course("n1", 1, [Sample(number * 10.0, mb, mb) for number, mb in enumerate(own_mb)])


@pytest.mark.parametrize(
    ("own_mb", "flat"),
    [
        # It goes up and down.
        ([100.0, 104.0] * 10, True),
        # 8 MB over the time of the samples, and a little more.
        ([40.0 + 8.0 * number / 19 for number in range(20)], True),
        ([40.0 + 8.2 * number / 19 for number in range(20)], False),
        # A tenth of what it has.
        ([100.0 + 9.9 * number / 19 for number in range(20)], True),
        ([100.0 + 10.1 * number / 19 for number in range(20)], False),
        # It shrinks.
        ([100.0 - number for number in range(20)], True),
    ],
)
def test_flat(own_mb: list[float], flat: bool) -> None:
    """What grows beyond what is drawn from sample to sample grows."""
    found = growth(course(*own_mb).samples)

    assert found.flat is flat


def test_growth_is_told_by_the_hour() -> None:
    """A MB in ten seconds."""
    found = growth(course(*range(10, 21)).samples)

    assert (found.begun_mb, found.mb_per_h, found.grown_mb) == pytest.approx((10.0, 360.0, 10.0))


def test_first_minutes_do_not_count() -> None:
    """It fills its caches then; and what lived no longer is not judged."""
    one = course(*range(10), *[50.0] * 10)

    assert one.growth(100.0) == (50.0, 0.0, 0.0)
    assert one.growth(150.0) is None


def test_process_that_is_gone_has_no_sample() -> None:
    """It was killed between two looks."""
    one = Course("n1", (1 << 22) + 1)
    one.look(0.0)

    assert one.samples == []


@pytest.mark.parametrize(
    ("run_s", "expected"), [(0.0, (10, 5.0)), (9.9, (10, 5.0)), (10.0, (20, 10.0)), (29.9, (20, 10.0)), (30.0, None)]
)
def test_stages(run_s: float, expected: tuple[int, float] | None) -> None:
    """One after the other, and then it is over."""
    stages = [Stage(seconds=10, users=10, spawn_rate=5), Stage(seconds=20, users=20)]

    assert stage_at(stages, run_s) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file"),
        ("users", "Expected"),
        ("[users]\nSubmitter = { wieght = 1 }", "unknown field `wieght`"),
        ("[thresholds]\n", "missing required field `users`"),
    ],
)
def test_mix_that_cannot_be_used(tmp_path: Path, text: str | None, why: str) -> None:
    """The file is named, and what is wrong."""
    path = tmp_path / "mix.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(MixError, match=why) as raised:
        read(path)

    assert str(path) in str(raised.value)


def test_mix_that_comes_with_it_has_users_of_every_kind(tmp_path: Path) -> None:
    """None is left out by mistake."""
    mix = read(Path(shutil.copy(DEFAULT, tmp_path)))

    kinds = {"Submitter", "BulkSubmitter", "Poller", "Watcher", "FakeAgent", "Operator", "ChaosObserver"}
    assert mix.users.keys() == kinds
