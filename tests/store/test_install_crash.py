"""kill -9 and power cuts while rows of another node take the place of ours: it is the old ones or the new, whole."""

import subprocess
import sys
from pathlib import Path

import pytest

from stepward.server.store import facts
from stepward.server.store.lmdb_store import LmdbStore
from tests.faults.powercut import PowerCutDisk
from tests.store.installing_node import their_rows
from tests.store.standing import Content, content, head_of, stand

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 60
# More points than there are.
POINTS_MAX = 60
OURS: Content = ({b"O0": b"ours", b"Zz": b"ours"}, [(20, b"twenty")])
THEIRS: Content = (dict(their_rows()), [(70, b"seventy")])


def make_ours(directory: Path) -> None:
    store = LmdbStore(directory, create=True)
    stand(store, sequence=2, index=20, term=1)
    store.apply(OURS[0].items(), [])
    store.put_entry(20, b"twenty")
    store.commit()
    store.close()


class InstallingNode:
    """A process that installs, and dies at a point if there is such a point."""

    def __init__(self, directory: Path, point: int, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.store.installing_node", str(directory), str(point), *arguments]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        """The next thing that it says; empty at its end."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        """As kill -9 does."""
        self._process.kill()
        _, errors = self._process.communicate(timeout=SECONDS_MAX)
        assert errors == ""


def look(directory: Path) -> bool:
    """Whether the new rows are there; whatever is there is whole, alone, and goes on."""
    store = LmdbStore(directory)
    try:
        found, head, applied = content(store), facts.read_head(store), facts.read_applied(store)
        is_new = found == THEIRS
        assert is_new or found == OURS, "neither the old rows nor the new"
        assert head == head_of(7 if is_new else 2)
        assert applied == ((70, 3) if is_new else (20, 1))
        store.apply([(b"after", b"1")], [])
        store.commit()
    finally:
        store.close()
    again = LmdbStore(directory)
    assert again.get(b"after") == b"1"
    again.close()
    assert {path.name for path in directory.iterdir()} == {"data.mdb", "lock.mdb", "node.lock"}
    return is_new


def test_kill_at_each_point(tmp_path: Path) -> None:
    """Old until one of the points, new from there on; and a new start finds nothing of what was left unfinished."""
    found: list[bool] = []
    for point in range(POINTS_MAX):
        directory = tmp_path / str(point)
        make_ours(directory)
        node = InstallingNode(directory, point)
        assert node.line() == "begun"
        is_done = node.line() == "installed"
        node.kill()
        found.append(look(directory))
        if is_done:
            break
    else:
        pytest.fail(f"there are more than {POINTS_MAX} points")

    assert found == sorted(found)
    # Before the folder is made, around the commits (two of them of facts and entries), around the first rename.
    assert found.count(False) >= 2 + 2 + 4 + 1
    # Around everything behind the first rename.
    assert found.count(True) >= 1 + 2 + 2 + 2


@pytest.mark.root
def test_power_cut_after_it_was_installed(tmp_path: Path) -> None:
    """What is said to be installed is: its content, and the names of its files."""
    with PowerCutDisk(tmp_path) as disk:
        make_ours(disk.folder / "data")
        node = InstallingNode(disk.folder / "data", POINTS_MAX)
        assert [node.line(), node.line()] == ["begun", "installed"]
        disk.cut()
        node.kill()
        disk.restore()

        assert look(disk.folder / "data")


@pytest.mark.root
def test_power_cut_without_the_flush_of_names(tmp_path: Path) -> None:
    """What the rule is for: without it the old rows are back, although they were said to be gone."""
    with PowerCutDisk(tmp_path) as disk:
        make_ours(disk.folder / "data")
        node = InstallingNode(disk.folder / "data", POINTS_MAX, "--no-name-flush")
        assert [node.line(), node.line()] == ["begun", "installed"]
        disk.cut()
        node.kill()
        disk.restore()

        assert not look(disk.folder / "data")


@pytest.mark.root
@pytest.mark.parametrize("point", range(0, 20, 2))
def test_power_cut_at_a_point(tmp_path: Path, point: int) -> None:
    """The process dies first, then the power goes before the disk has written what nobody flushed."""
    with PowerCutDisk(tmp_path) as disk:
        make_ours(disk.folder / "data")
        node = InstallingNode(disk.folder / "data", point)
        while node.line() not in {"", "installed"}:
            pass
        disk.cut()
        node.kill()
        disk.restore()

        look(disk.folder / "data")
