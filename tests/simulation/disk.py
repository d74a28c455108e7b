"""A disk that forgets what was not flushed, and the store of a replica on it.

What is written goes to a cache. A flush takes time; what it covers is safe only when that time is over. Killing the
process loses what it had not yet written. A power cut loses, tears or garbles any of the writes that no finished flush
covers, each by itself, since nothing orders them.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import msgspec
from typing_extensions import override

from stepward.server.store.errors import StoreCorrupt
from stepward.server.store.memory import MemoryStore

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping, Sequence

    from stepward.server.store.interface import Incoming

PAGE_BYTES: Final = 4_096
_SECTOR_BYTES: Final = 512
_META_PAGES: Final = (0, 1)
_FLUSH: Final = -1
# Usual time of a flush, and that of one on a disk that has a bad moment.
_FLUSH_US: Final = (100, 1_500)
_FULL_EVERY: Final = 200


class Device:
    """Pages that survive. Writes and flushes of one step are in order; they are over when `settle` is called."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._pages: dict[int, bytes] = {}
        # Written by steps that are over, and not flushed since.
        self._cached: dict[int, bytes] = {}
        # Of the step that is under way.
        self._issued: list[tuple[int, bytes]] = []
        self.flush_us_next = 0
        self.took_us = 0
        self.flushes = 0

    @property
    def pages(self) -> int:
        """How many it holds."""
        return len(self._pages)

    def read(self, number: int) -> bytes | None:
        """A page, as it is when nothing is under way."""
        return self._cached.get(number) or self._pages.get(number)

    def write(self, number: int, content: bytes) -> None:
        """Write a page, some time."""
        self._issued.append((number, content))

    def flush(self) -> None:
        """Nothing that was written before may be lost from when this is over."""
        self.flushes += 1
        usual_us = int(self._rng.uniform(*_FLUSH_US))
        self.took_us += self.flush_us_next or usual_us
        self.flush_us_next = 0
        self._issued.append((_FLUSH, b""))

    def drop(self, numbers: list[int]) -> None:
        """Nobody reads these pages any more."""
        for number in numbers:
            self._pages.pop(number, None)
            self._cached.pop(number, None)

    def settle(self) -> None:
        """The step is over, and so are its flushes."""
        for number, content in self._issued:
            if number == _FLUSH:
                self._pages.update(self._cached)
                self._cached.clear()
            else:
                self._cached[number] = content
        self._issued.clear()

    def take_took_us(self) -> int:
        """How long the flushes took since the last time this was asked."""
        took_us, self.took_us = self.took_us, 0
        return took_us

    def kill(self) -> None:
        """The process ends: what it has not yet written of the step that is under way is never written."""
        del self._issued[self._rng.randint(0, len(self._issued)) :]
        self.settle()

    def cut_power(self) -> None:
        """The machine ends: what no finished flush covers is there, or not, or in pieces."""
        self.kill()
        loose = list(self._cached.items())
        self._cached.clear()
        self._rng.shuffle(loose)
        for number, content in loose:
            self._write_loosely(number, content)

    def _write_loosely(self, number: int, content: bytes) -> None:
        """What a page may hold whose writing was never flushed."""
        before = self._pages.get(number, b"")
        match self._rng.choice(("there", "lost", "torn", "garbled")):
            case "there":
                self._pages[number] = content
            case "torn":
                sectors = self._rng.randint(0, PAGE_BYTES // _SECTOR_BYTES)
                self._pages[number] = content[: sectors * _SECTOR_BYTES] + before[sectors * _SECTOR_BYTES :]
            case "garbled":
                at = self._rng.randrange(len(content))
                self._pages[number] = content[:at] + bytes((content[at] ^ 0xFF,)) + content[at + 1 :]
            case _:
                pass


class _Run(msgspec.Struct, array_like=True, frozen=True):
    """One commit: the pages that hold it, and the commit that it continues (pages of the one before; empty: whole)."""

    first: int
    bytes_: int
    checksum: int


class _Meta(msgspec.Struct, array_like=True, frozen=True):
    """The newest commit."""

    transaction: int
    chain: list[_Run]
    next_page: int


_Changes = list[dict[bytes, bytes | None]]
_encode = msgspec.msgpack.Encoder().encode
_decode_meta = msgspec.msgpack.Decoder(_Meta).decode
_decode_changes = msgspec.msgpack.Decoder(_Changes).decode


class PageStore(MemoryStore):
    """A store whose commits are pages of a device, written behind each other, and two metas that take turns.

    A commit is there when its meta is whole, and that is written when its pages are flushed: so it is there at once and
    whole, or not at all. Every so often a commit holds everything, and what came before is dropped once both metas are
    past it.
    """

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device
        self._transaction = 0
        self._chain: list[_Run] = []
        self._next_page = len(_META_PAGES)
        self._droppable: list[tuple[int, list[int]]] = []
        self._load()

    def _load(self) -> None:
        metas = [meta for number in _META_PAGES if (meta := self._read_meta(number)) is not None]
        if not metas:
            return
        newest = max(metas, key=lambda meta: meta.transaction)
        self._transaction, self._chain, self._next_page = newest.transaction, list(newest.chain), newest.next_page
        for run in self._chain:
            for space, changes in zip(self._spaces(), self._read(run), strict=True):
                space.pending.update(changes)
        self._keep()
        self._keep_what_was_found()

    def _keep_what_was_found(self) -> None:
        """A process that was killed in the middle of a commit may have left it written and not flushed."""
        self._device.flush()
        self._device.settle()

    def _read_meta(self, number: int) -> _Meta | None:
        page = self._device.read(number)
        if page is None or len(page) < 4 or zlib.crc32(page[4:]) != int.from_bytes(page[:4], "big"):
            return None
        return _decode_meta(page[4:])

    def _read(self, run: _Run) -> _Changes:
        pages = range(run.first, run.first + _pages(run.bytes_))
        content = b"".join(self._device.read(number) or b"" for number in pages)[: run.bytes_]
        if zlib.crc32(content) != run.checksum:
            raise StoreCorrupt(f"pages {pages.start} to {pages.stop - 1} are damaged, although a meta counts on them")
        return _decode_changes(content)

    @override
    def commit(self) -> None:
        if not self._dirty:
            return
        if len(self._chain) < _FULL_EVERY:
            self._write([space.pending for space in self._spaces()])
            super().commit()
        else:
            super().commit()
            self._write_whole()

    @override
    def install(
        self, incoming: Incoming, *, facts: Mapping[bytes, bytes], entries: Iterable[tuple[int, bytes]]
    ) -> None:
        super().install(incoming, facts=facts, entries=entries)
        self._write_whole()

    def _write_whole(self) -> None:
        """Begin the chain anew with everything."""
        old = [page for run in self._chain for page in range(run.first, run.first + _pages(run.bytes_))]
        self._droppable.append((self._transaction + 2, old))
        self._chain = []
        self._write([space.committed for space in self._spaces()])

    def _write(self, changes: Sequence[Mapping[bytes, bytes | None]]) -> None:
        """Pages, flush, meta, flush."""
        device, content = self._device, _encode(changes)
        self._transaction += 1
        run = _Run(self._next_page, len(content), zlib.crc32(content))
        for place in range(_pages(len(content))):
            device.write(run.first + place, content[place * PAGE_BYTES : (place + 1) * PAGE_BYTES])
        device.flush()
        self._chain.append(run)
        self._next_page += _pages(len(content))
        meta = _encode(_Meta(self._transaction, self._chain, self._next_page))
        device.write(self._transaction % 2, zlib.crc32(meta).to_bytes(4, "big") + meta)
        device.flush()
        while self._droppable and self._droppable[0][0] < self._transaction:
            device.drop(self._droppable.pop(0)[1])


def _pages(bytes_: int) -> int:
    return -(-bytes_ // PAGE_BYTES)
