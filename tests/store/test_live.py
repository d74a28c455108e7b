"""What the leader's cache keeps, what it forgets, and that it asks the store no more than it must."""

import pytest
from typing_extensions import override

from stepward.server.core import keys, rows
from stepward.server.store.live import CommittedRows, LiveRows
from stepward.server.store.memory import MemoryStore


class AskedStore(MemoryStore):
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bytes] = []

    @override
    def get(self, key: bytes) -> bytes | None:
        self.asked.append(key)
        return super().get(key)


def progress(revision: int) -> rows.Row:
    return rows.Progress(rows.JobState.RUNNING, revision, 0, 1)


def put(store: MemoryStore, live: LiveRows | None, changes: dict[bytes, rows.Row]) -> None:
    store.apply([(key, keys.encode_row(row)) for key, row in changes.items()], [])
    if live is not None:
        live.applied(changes)


def test_row_that_was_just_written_is_not_read_from_the_store() -> None:
    store = AskedStore()
    live = LiveRows(store)
    put(store, live, {b"Pa": progress(1)})

    assert live.get(b"Pa") == progress(1)
    assert store.asked == []


def test_row_that_was_read_is_not_read_again() -> None:
    store = AskedStore()
    put(store, None, {b"Pa": progress(1)})
    live = LiveRows(store)

    assert [live.get(b"Pa"), live.get(b"Pa")] == [progress(1), progress(1)]
    assert store.asked == [b"Pa"]


def test_kinds_that_are_written_once_are_not_kept() -> None:
    """A timer is found by scanning, looked at and deleted; keeping it would push out what is needed."""
    store = AskedStore()
    live = LiveRows(store)
    put(store, live, {b"Ta": rows.Timer()})
    live.get(b"Ta")
    live.get(b"Ta")

    assert store.asked == [b"Ta", b"Ta"]


@pytest.mark.parametrize(("rows_written", "asked"), [(20, 0), (21, 1)])
def test_rows_are_bounded(rows_written: int, asked: int) -> None:
    """Two generations of `rows_max` are kept; one row more, and the older generation is gone."""
    store = AskedStore()
    live = LiveRows(store, rows_max=10)
    for number in range(rows_written):
        put(store, live, {b"P%02d" % number: progress(number)})
    live.get(b"P09")

    assert len(store.asked) == asked


def test_rows_in_use_survive_those_that_are_not() -> None:
    store = AskedStore()
    live = LiveRows(store, rows_max=10)
    put(store, live, {b"Pbusy": progress(0)})
    for number in range(100):
        put(store, live, {b"P%02d" % number: progress(number)})
        live.get(b"Pbusy")

    assert store.asked == []


@pytest.mark.parametrize(
    ("payload_bytes", "asked"),
    # Two generations of two payloads hold all four; with payloads a byte larger the third begins a new generation.
    [(49, 0), (100, 1)],
)
def test_payload_bytes_are_bounded(payload_bytes: int, asked: int) -> None:
    """Rows are small but for what callers put into them."""
    store = AskedStore()
    live = LiveRows(store, payload_bytes_max=100)
    for number in range(3):
        put(store, live, {b"O%d" % number: rows.Output(rows.Payload(bytes(payload_bytes)))})
    live.get(b"O0")

    assert len(store.asked) == asked


def test_definitions_outlive_all_rows() -> None:
    """Every decision about a job reads its definition, and nothing is as large to decode."""
    store = AskedStore()
    live = LiveRows(store, rows_max=2)
    put(store, live, {b"Chash": rows.DefinitionBody("name", (), b"", b"")})
    for number in range(50):
        put(store, live, {b"P%02d" % number: progress(number)})
    live.get(b"Chash")

    assert store.asked == []


def test_definitions_are_bounded() -> None:
    store = AskedStore()
    live = LiveRows(store, definitions_max=2)
    for number in range(3):
        put(store, live, {b"C%d" % number: rows.DefinitionBody(str(number), (), b"", b"")})
    for number in (2, 1, 0):
        live.get(b"C%d" % number)

    assert store.asked == [b"C0"]


def test_deleted_row_is_gone_from_both_generations() -> None:
    store = AskedStore()
    live = LiveRows(store, rows_max=1)
    put(store, live, {b"Pa": progress(1)})
    put(store, live, {b"Pb": progress(1)})
    store.apply([], [b"Pa"])
    live.applied({b"Pa": None})

    assert live.get(b"Pa") is None


def test_deleted_definition_is_gone() -> None:
    store = AskedStore()
    live = LiveRows(store)
    put(store, live, {b"Chash": rows.DefinitionBody("name", (), b"", b"")})
    store.apply([], [b"Chash"])
    live.applied({b"Chash": None})

    assert live.get(b"Chash") is None


def test_session_without_assignments_leaves_nothing_behind() -> None:
    live = LiveRows(MemoryStore())
    grant = rows.Assignment(part=rows.Part.ACTION, start=rows.StartMode.ON_OFFER, offered_led_ms=1)
    for token in range(10):
        key = keys.assignment(f"session-{token}", token, "1-j", 0)
        live.applied({key: grant})
        live.applied({key: None})

    assert live._assignments == {}


def test_cache_of_a_new_epoch_starts_from_rows() -> None:
    """Assignments are derived from rows, so what an earlier leader's memory held does not matter."""
    store = MemoryStore()
    grant = rows.Assignment(part=rows.Part.ACTION, start=rows.StartMode.ON_OFFER, offered_led_ms=1)
    put(store, None, {keys.assignment("s", token, "1-j", 0): grant for token in range(5)})

    assert LiveRows(store).count(keys.assignments("s")) == 5


def test_assignments_are_counted_without_walking() -> None:
    store = MemoryStore()
    live = LiveRows(store)
    grant = rows.Assignment(part=rows.Part.ACTION, start=rows.StartMode.ON_OFFER, offered_led_ms=1)
    live.applied({keys.assignment("s", 1, "1-j", 0): grant})

    assert live.count(keys.assignments("s")) == 1
    assert store.count(keys.assignments("s")) == 0


def test_committed_rows_know_their_head() -> None:
    store = MemoryStore()
    head = rows.Head(3, b"h", 2, 1, 10, 20, 30, 40, "boot")
    store.put_fact(b"head", keys.encode_row(head))
    store.commit()

    with store.snapshot() as snapshot:
        assert CommittedRows(snapshot).head() == head


def test_sessions_are_counted_without_walking() -> None:
    """Those that an earlier leader knew count, and each counts once."""
    store = MemoryStore()
    session = rows.Session("n", "q", ("a",), 1, "", "", "n1", 1, 3_000, 0, 0, 0, 1, 0)
    put(store, None, {keys.session("one"): session})
    live = LiveRows(store)
    live.applied({keys.session("two"): session})
    live.applied({keys.session("two"): session, keys.session("one"): None})

    assert live.count(keys.SESSION) == 1


def test_committed_rows_of_a_leader_are_those_in_its_memory() -> None:
    """What it holds decoded is not decoded again; what it does not hold comes from the store, and stays unknown."""
    store = MemoryStore()
    live = LiveRows(store)
    index = keys.job_index("n", rows.JobState.RUNNING, "1-j")
    changes: dict[bytes, rows.Row] = {
        keys.output("1-j", 0): rows.Output(rows.Payload(b"1")),
        index: rows.JobIndex(),
    }
    put(store, live, changes)

    committed = CommittedRows(store, live)

    assert committed.get(keys.output("1-j", 0)) is changes[keys.output("1-j", 0)]
    assert committed.get(index) == rows.JobIndex()
    assert live.known(index) is None


def test_committed_rows_of_a_leader_forget_what_was_deleted() -> None:
    store = MemoryStore()
    live = LiveRows(store)
    key = keys.output("1-j", 0)
    put(store, live, {key: rows.Output(rows.Payload(b"1"))})
    store.apply([], [key])
    live.applied({key: None})
    store.commit()

    assert CommittedRows(store, live).get(key) is None
