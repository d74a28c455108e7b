"""A disk whose power can be cut: what was not flushed is gone, as after a power failure of the machine.

The disk is a file with an ext4 file system in it, mounted in a mount namespace of its own, so that nothing is left
mounted however a test ends. `cut` asks ext4 to stop at once without writing anything more (EXT4_IOC_SHUTDOWN with
NOLOGFLUSH): pages that nobody flushed are lost, those of memory maps too, and every later access fails. `restore`
mounts it again, and the file system replays its own journal. A cut takes a few ten milliseconds and needs root.
"""

import fcntl
import os
import struct
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

# From <linux/ext4.h>: _IOR('X', 125, __u32), and "go down without flushing the journal".
_EXT4_IOC_SHUTDOWN: Final = 0x8004587D
_NOLOGFLUSH: Final = 2
_COMMAND_SECONDS_MAX: Final = 30


class PowerCutDisk:
    """A mounted disk, for use in `with`.

    `folder` is where it is, for this process and all others. A server that has files open there has to be ended before
    `restore` or the end of the `with`.
    """

    def __init__(self, workplace: Path, *, mebibytes: int = 512) -> None:
        self._image = workplace / "disk.img"
        self._mountpoint = workplace / "disk"
        self._mebibytes = mebibytes
        self._keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._mountpoint.mkdir()
        with self._image.open("wb") as image:
            image.truncate(self._mebibytes << 20)
        _run("mkfs.ext4", "-q", "-F", self._image)
        # Keeps the namespace alive, and ends with us: its input is a pipe that closes when this process ends.
        self._keeper = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo ready; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == b"ready\n", "no mount namespace: is this root?"
        self._mount()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        keeper = self._running()
        try:
            self._inside("umount", self._mountpoint)
        finally:
            keeper.communicate(timeout=_COMMAND_SECONDS_MAX)
            self._keeper = None
            self._image.unlink()

    @property
    def folder(self) -> Path:
        """The root of the disk. The way leads through the namespace's keeper, so any process can take it."""
        return Path(f"/proc/{self._running().pid}/root") / self._mountpoint.relative_to("/")

    def cut(self) -> None:
        """Lose everything that was not flushed. From here on every access fails."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _EXT4_IOC_SHUTDOWN, struct.pack("I", _NOLOGFLUSH))
        finally:
            os.close(descriptor)

    def restore(self) -> None:
        """Give power again: the disk is as a machine finds it that starts after a power failure."""
        self._inside("umount", self._mountpoint)
        self._mount()

    def _mount(self) -> None:
        self._inside("mount", "-o", "loop", self._image, self._mountpoint)

    def _inside(self, *command: str | Path) -> None:
        _run("nsenter", "--mount", "--target", str(self._running().pid), *command)

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._keeper is not None, "the disk is not mounted"
        return self._keeper


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS_MAX, check=False)
    assert done.returncode == 0, f"{command[0]} failed: {done.stderr}"
