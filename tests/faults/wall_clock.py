"""The wall clock of a single process, which jumps when it is told to: a library that is loaded before all others.

It is built here, by the compiler of the machine. Steady clocks stay as they are, unless the machine is said to have
slept: then the one that counts suspension has gone on as well.
"""

from __future__ import annotations

import mmap
import struct
import subprocess
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_name("clock_shim.c")
_BUILD_S_MAX: Final = 60
# Seconds that are added to the wall clock, and to the steady clock that counts suspension.
_OFFSETS: Final = struct.Struct("dd")


class WallClock:
    """Of the processes whose command begins with `prefix`."""

    def __init__(self, folder: Path, name: str) -> None:
        library = folder / "clock_shim.so"
        if not library.exists():
            command = ("cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, _SOURCE, "-lm")
            subprocess.run(command, check=True, timeout=_BUILD_S_MAX)
        offset = folder / f"{name}.offset"
        offset.write_bytes(_OFFSETS.pack(0.0, 0.0))
        self._file = offset.open("r+b")
        self._page = mmap.mmap(self._file.fileno(), _OFFSETS.size)
        self.prefix = ("env", f"LD_PRELOAD={library}", f"CLOCK_OFFSETS_FILE={offset}")

    def set(self, ahead_s: float) -> None:
        """How far it is ahead of the machine's from now on."""
        self._write(ahead_s, _OFFSETS.unpack(self._page[:])[1])

    def sleep(self, seconds: float) -> None:
        """The machine has slept for so long: the wall clock has gone on, and the steady one that counts it."""
        wall_s, steady_s = _OFFSETS.unpack(self._page[:])
        self._write(wall_s + seconds, steady_s + seconds)

    def _write(self, wall_s: float, steady_s: float) -> None:
        self._page[:] = _OFFSETS.pack(wall_s, steady_s)
        self._page.flush()

    def close(self) -> None:
        """Leave it as it is."""
        self._page.close()
        self._file.close()
