"""The disk of the power-cut tests really loses what was not flushed, and only that."""

import os
from pathlib import Path

import pytest

from tests.faults.powercut import PowerCutDisk


@pytest.mark.root
def test_cut_loses_what_was_not_flushed(tmp_path: Path) -> None:
    with PowerCutDisk(tmp_path, mebibytes=64) as disk:
        flushed, lazy = disk.folder / "flushed", disk.folder / "lazy"
        lazy.write_bytes(b"gone")
        with flushed.open("wb") as file:
            file.write(b"kept")
            file.flush()
            os.fsync(file.fileno())
        with lazy.open("ab") as file:
            file.write(b" too")
        disk.cut()
        with pytest.raises(OSError, match="Input/output error"):
            (disk.folder / "more").write_bytes(b"more")
        disk.restore()

        assert flushed.read_bytes() == b"kept"
        assert not lazy.exists() or lazy.read_bytes() == b""


@pytest.mark.root
def test_nothing_stays_mounted(tmp_path: Path) -> None:
    with PowerCutDisk(tmp_path, mebibytes=64) as disk:
        folder = disk.folder
        assert str(tmp_path) not in Path("/proc/mounts").read_text()

    assert not folder.exists()
    assert list(tmp_path.iterdir()) == [tmp_path / "disk"]
