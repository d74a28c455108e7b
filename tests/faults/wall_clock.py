"""The wall clock of a single process, which jumps when it is told to: a library that is loaded before all others.

It is built here, by the compiler of the machine. The steady clocks stay as they are.
"""

from __future__ import annotations

import mmap
import struct
import subprocess
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_name("clock_shim.c")
_BUILD_S_MAX: Final = 60


class WallClock:
    """Of the processes whose command begins with `prefix`."""

    def __init__(self, folder: Path, name: str) -> None:
        library = folder / "clock_shim.so"
        if not library.exists():
            command = ("cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, _SOURCE, "-lm")
            subprocess.run(command, check=True, timeout=_BUILD_S_MAX)
        offset = folder / f"{name}.offset"
        offset.write_bytes(struct.pack("d", 0.0))
        self._file = offset.open("r+b")
        self._page = mmap.mmap(self._file.fileno(), 8)
        self.prefix = ("env", f"LD_PRELOAD={library}", f"WALL_OFFSET_FILE={offset}")

    def set(self, ahead_s: float) -> None:
        """How far it is ahead of the machine's from now on."""
        self._page[:8] = struct.pack("d", ahead_s)
        self._page.flush()

    def close(self) -> None:
        """Leave it as it is."""
        self._page.close()
        self._file.close()
