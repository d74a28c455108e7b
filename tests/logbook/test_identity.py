"""A cluster is made once, on purpose, and a node knows who it is."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from typing_extensions import override

from stepward.server.logbook.errors import ClusterAbsent, ClusterExists, DataLost, DataNewer
from stepward.server.logbook.identity import (
    FORMAT,
    Identity,
    create_cluster,
    ensure_cluster,
    found_cluster,
    join_cluster,
    join_directory,
    known_identity,
    open_identity,
)
from stepward.server.store import facts
from stepward.server.store.errors import StoreCorrupt, StoreInUse
from stepward.server.store.lmdb_store import LmdbStore
from stepward.server.store.memory import MemoryStore


def test_cluster_is_made_in_a_new_directory(tmp_path: Path) -> None:
    made = create_cluster(tmp_path / "new" / "data", "n1")
    store = LmdbStore(tmp_path / "new" / "data")

    assert open_identity(store) == made
    assert (made.node_id, made.incarnation) == ("n1", 1)
    assert facts.read_head(store).sequence == 0
    store.close()


def test_clusters_differ(tmp_path: Path) -> None:
    assert create_cluster(tmp_path / "a", "n1").cluster_id != create_cluster(tmp_path / "b", "n1").cluster_id


def test_second_cluster_in_a_directory_is_refused(tmp_path: Path) -> None:
    made = create_cluster(tmp_path, "n1")
    with pytest.raises(ClusterExists) as caught:
        create_cluster(tmp_path, "n1")

    assert caught.value.cluster_id == made.cluster_id
    # And the refusal lets go of the directory.
    LmdbStore(tmp_path).close()


def test_directory_of_a_running_node_is_refused(tmp_path: Path) -> None:
    create_cluster(tmp_path, "n1")
    store = LmdbStore(tmp_path)

    with pytest.raises(StoreInUse):
        create_cluster(tmp_path, "n1")
    store.close()


def test_store_without_a_cluster_is_refused() -> None:
    with pytest.raises(ClusterAbsent):
        open_identity(MemoryStore())


def test_h085_data_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """H085: both formats are named, and nothing is touched: the newer version goes on with it."""
    known = create_cluster(tmp_path, "n1")
    with closing(LmdbStore(tmp_path)) as store:
        newer = msgspec.msgpack.encode([FORMAT + 1, "id", "n1", 1, "more"])
        ours = store.fact(facts.IDENTITY)
        store.put_fact(facts.IDENTITY, newer)
        store.commit()
    files = {path: path.read_bytes() for path in tmp_path.iterdir() if path.name in ("data.mdb", "cluster")}

    with (
        closing(LmdbStore(tmp_path)) as store,
        pytest.raises(DataNewer, match=f"format {FORMAT + 1}, and this version reads up to {FORMAT}: a newer version"),
    ):
        open_identity(store)

    assert {path: path.read_bytes() for path in files} == files
    assert len(files) == 2
    with closing(LmdbStore(tmp_path)) as store:
        assert store.fact(facts.IDENTITY) == newer
        assert ours is not None
        store.put_fact(facts.IDENTITY, ours)
        assert open_identity(store) == known


@pytest.mark.parametrize("value", [b"\xc1", msgspec.msgpack.encode({}), msgspec.msgpack.encode([]), b"\x91\xa1a"])
def test_what_is_no_identity_is_refused(value: bytes) -> None:
    store = MemoryStore()
    store.put_fact(facts.IDENTITY, value)

    with pytest.raises(StoreCorrupt):
        open_identity(store)


def test_crash_while_a_cluster_is_made_leaves_nothing() -> None:
    """All of it is one commit, so the next attempt starts from nothing and succeeds."""

    class Crash(MemoryStore):
        @override
        def commit(self) -> None:
            self.lose_uncommitted()

    store = Crash()
    found_cluster(store, "n1", wall_ms=1)

    with pytest.raises(ClusterAbsent):
        open_identity(store)
    assert isinstance(found_cluster(store, "n1", wall_ms=1), Identity)


def lose(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [lose, empty])
def test_directory_that_has_lost_its_data_is_not_taken_for_a_new_one(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    """A new cluster there would forget every job, and give tokens that services have seen before."""
    made = create_cluster(tmp_path, "n1")
    harm(tmp_path / "data.mdb")

    for begin in (ensure_cluster, create_cluster):
        with pytest.raises(DataLost) as caught:
            begin(tmp_path, "n1")
        assert caught.value.cluster_id == made.cluster_id


def test_data_of_another_kind_in_place_of_the_lost_is_refused(tmp_path: Path) -> None:
    """A store that knows no cluster is not the one that was here."""
    create_cluster(tmp_path / "a", "n1")
    LmdbStore(tmp_path / "b", create=True).close()
    (tmp_path / "b" / "data.mdb").replace(tmp_path / "a" / "data.mdb")

    with pytest.raises(DataLost):
        ensure_cluster(tmp_path / "a", "n1")


def test_directory_without_a_mark_is_given_one(tmp_path: Path) -> None:
    """A crash may come between the cluster and its mark."""
    made = create_cluster(tmp_path, "n1")
    (tmp_path / "cluster").unlink()
    ensure_cluster(tmp_path, "n1")

    assert (tmp_path / "cluster").read_text() == f"{made.cluster_id}\n"


MEMBERS = ("n1", "n2", "n3")


def test_members_of_one_cluster_begin_alike() -> None:
    """Equal heads are what shows that replicas agree, from before the first batch."""
    stores = {node_id: MemoryStore() for node_id in MEMBERS}
    made = [
        found_cluster(store, node_id, wall_ms=7, members=MEMBERS, cluster_id="c") for node_id, store in stores.items()
    ]

    assert len({store.fact(facts.HEAD) for store in stores.values()}) == 1
    assert len({tuple(store.entries()) for store in stores.values()}) == 1
    assert made[1] == open_identity(stores["n2"]) == Identity("c", "n2", 1, MEMBERS, 1)
    assert made[1].peers == ("n1", "n3")
    assert all(store.fact(facts.QUARANTINE) is None for store in stores.values())


def test_a_cluster_of_one_has_one_member() -> None:
    """Also when nobody said so, as in the directories of before there were several."""
    store = MemoryStore()
    store.put_fact(facts.IDENTITY, msgspec.msgpack.encode([1, "id", "n1", 1]))

    assert open_identity(store) == Identity("id", "n1", 1, ("n1",), 1)
    assert open_identity(store).peers == ()


def test_members_have_one_order() -> None:
    """Whoever lists them otherwise means the same cluster."""
    assert Identity("c", "n1", 1, ("n3", "n1", "n2")) == Identity("c", "n1", 1, MEMBERS)


def test_a_node_that_is_no_member_is_refused() -> None:
    """It would count votes that are none."""
    with pytest.raises(ValueError, match="node n4 is not among the nodes of its cluster: n1, n2, n3"):
        Identity("c", "n4", 1, MEMBERS)


def test_a_node_that_joins_is_in_quarantine() -> None:
    """It begins before the first batch, and is known to have forgotten whatever it may have promised."""
    founded, joined = MemoryStore(), MemoryStore()
    found_cluster(founded, "n1", wall_ms=7, members=MEMBERS, cluster_id="c")
    join_cluster(joined, Identity("c", "n2", 1, MEMBERS, 1_700_000_000_000))

    assert joined.fact(facts.QUARANTINE) is not None
    assert open_identity(joined).node_incarnation == 1_700_000_000_000
    assert facts.read_head(joined).hash == facts.read_head(founded).hash
    with pytest.raises(ClusterExists):
        join_cluster(joined, Identity("c", "n2", 1, MEMBERS, 1_700_000_000_001))


def test_a_directory_that_joins_is_kept_like_any_other(tmp_path: Path) -> None:
    """What it has promised since counts, so it is never taken for an empty one again."""
    identity = Identity("c", "n2", 1, MEMBERS, 1_700_000_000_000)
    assert known_identity(tmp_path) is None

    join_directory(tmp_path, identity)

    assert known_identity(tmp_path) == identity
    (tmp_path / "data.mdb").unlink()
    with pytest.raises(DataLost, match="or remove the whole directory"):
        known_identity(tmp_path)


def test_a_crash_before_the_cluster_was_made_leaves_an_empty_directory(tmp_path: Path) -> None:
    """What a node begins with may be begun again."""
    LmdbStore(tmp_path, create=True).close()

    assert known_identity(tmp_path) is None
