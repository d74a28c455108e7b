"""A cluster is made once, on purpose, and a node knows who it is."""

from pathlib import Path

import msgspec
import pytest
from typing_extensions import override

from stepward.server.logbook.errors import ClusterAbsent, ClusterExists
from stepward.server.logbook.identity import Identity, create_cluster, found_cluster, open_identity
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


def test_identity_of_the_future_is_refused() -> None:
    store = MemoryStore()
    store.put_fact(facts.IDENTITY, msgspec.msgpack.encode([2, "id", "n1", 1, "more"]))

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
