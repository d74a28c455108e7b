"""The file of the log: whatever a crash leaves of it, what is read are the records that were whole, in order."""

import os
import random
from pathlib import Path

import pytest

from stepward.server.store import write_ahead
from stepward.server.store.errors import StoreCorrupt
from stepward.server.store.write_ahead import ID_BYTES, LOG_FILE, FactPut, WriteAhead, read_log
from tests.store.logged import log_of

ID = bytes(range(ID_BYTES))
SECTOR_BYTES = 512


def written(directory: Path, contents: list[bytes], log_id: bytes = ID) -> list[int]:
    """A log with these facts, one a record. Gives where each record ends."""
    log = WriteAhead(directory, bytes_max=1 << 20, durable=True)
    log.prepare()
    log.begin(log_id)
    ends = []
    for content in contents:
        work = log.record([FactPut(b"f", content)])
        assert work is not None
        work()
        ends.append(log.end_bytes)
    log.close()
    return ends


def found(directory: Path, log_id: bytes = ID) -> list[bytes]:
    """The facts of a log."""
    return [
        change.value for changes in read_log(directory, log_id) for change in changes if isinstance(change, FactPut)
    ]


def overwrite(directory: Path, begin: int, content: bytes) -> None:
    with (directory / LOG_FILE).open("r+b") as file:
        file.seek(begin)
        file.write(content)


def test_torn_record_is_none_wherever_it_is_torn(tmp_path: Path) -> None:
    """At each of its bytes: what follows was not written, or what lay there before still does."""
    ends = written(tmp_path, [b"first", b"second", b"the last one"])
    whole = log_of(tmp_path)[: ends[2]]
    assert found(tmp_path) == [b"first", b"second", b"the last one"]

    for torn in range(ends[1], ends[2]):
        for rest in (bytes(ends[2] - torn), bytes(byte ^ 0xFF for byte in whole[torn:])):
            overwrite(tmp_path, torn, rest)
            assert found(tmp_path) == [b"first", b"second"], torn
        overwrite(tmp_path, ends[1], whole[ends[1] :])
        overwrite(tmp_path, torn, bytes((whole[torn] ^ 1,)))
        assert found(tmp_path) == [b"first", b"second"], torn
        overwrite(tmp_path, torn, whole[torn : torn + 1])


def test_file_may_end_anywhere_in_the_last_record(tmp_path: Path) -> None:
    ends = written(tmp_path, [b"first", b"second"])
    for size in reversed(range(ends[0], ends[1])):
        os.truncate(tmp_path / LOG_FILE, size)
        assert found(tmp_path) == [b"first"], size


def test_sectors_of_the_last_record_are_lost_in_any_order(tmp_path: Path, only_seed: int | None) -> None:
    """Nothing orders what no flush has covered yet: each sector is new, old, or of an earlier life of the file."""
    seed = random.randrange(1 << 32) if only_seed is None else only_seed
    print(f"--seed {seed}")
    chance = random.Random(seed)
    # An earlier life, with records as long as those that come.
    written(tmp_path, [b"old", chance.randbytes(3_000), chance.randbytes(3_000)], log_id=bytes(ID_BYTES))
    before = log_of(tmp_path)
    ends = written(tmp_path, [b"new", chance.randbytes(3_000)])
    after = log_of(tmp_path)
    sectors = range(ends[0] // SECTOR_BYTES, -(-ends[1] // SECTOR_BYTES))

    for _ in range(200):
        lost = chance.sample(sectors, chance.randint(1, len(sectors)))
        for sector in lost:
            at = max(ends[0], sector * SECTOR_BYTES)
            overwrite(tmp_path, at, before[at : (sector + 1) * SECTOR_BYTES])
        assert found(tmp_path) == [b"new"], lost
        overwrite(tmp_path, 0, after)


def test_records_of_an_earlier_life_are_none(tmp_path: Path) -> None:
    """Also where they stand right behind the newest, with the number that would be next."""
    ends = written(tmp_path, [b"11", b"22", b"33"], log_id=bytes(ID_BYTES))
    assert written(tmp_path, [b"aa"]) == ends[:1]

    assert found(tmp_path) == [b"aa"]


def test_record_in_another_place_is_none(tmp_path: Path) -> None:
    """The first one, copied to where the second belongs, is whole and of this log."""
    ends = written(tmp_path, [b"11", b"22"])
    overwrite(tmp_path, ends[0], log_of(tmp_path)[: ends[0]])

    with pytest.raises(StoreCorrupt, match="is damaged"):
        found(tmp_path)


@pytest.mark.parametrize("number", [1, 2])
def test_damage_before_a_whole_record_is_told(tmp_path: Path, number: int) -> None:
    """A record is begun when the one before it is durable: this is no crash, and something acknowledged is gone."""
    ends = [0, *written(tmp_path, [b"first", b"second", b"third"])]
    overwrite(tmp_path, ends[number] - 1, b"?")

    with pytest.raises(StoreCorrupt, match=f"record {number} of .* is damaged, at byte {ends[number - 1]}, and others"):
        found(tmp_path)


def test_record_of_a_newer_version_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_ahead, "_encode", lambda changes: b"\x91\x92\x63\x00")
    written(tmp_path, [b"of tomorrow"])

    with pytest.raises(StoreCorrupt, match=r"record 1 of .*cannot be read .*newer version"):
        found(tmp_path)
