"""Directories that belong together, and a node that is configured for what its directory says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stepward.server.arguments import VARIABLES
from stepward.server.config import NodeConfig
from stepward.server.config_file import KEYS
from stepward.server.logbook.identity import Identity, create_cluster, known_identity
from stepward.server.membership import FoundingUnfinished, NodeMismatch, check_identity, found_directories

MEMBERS = ("n1", "n2", "n3")
NODES = {"n1": "a:1", "n2": "b:2", "n3": "c:3"}
RUN_S_MAX = 30.0


def server(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the server's program to its end."""
    command = [sys.executable, "-m", "stepward.server", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_S_MAX, env={**os.environ, **environment}, check=False
    )


def test_directories_of_a_new_cluster(tmp_path: Path) -> None:
    """Each node gets its own, all under one id; doing it again changes nothing."""
    first = found_directories(tmp_path, MEMBERS)
    again = found_directories(tmp_path, ("n3", "n2", "n1"))

    assert first == again
    assert [known_identity(tmp_path / node_id) for node_id in MEMBERS] == [
        Identity(first, node_id, 1, MEMBERS) for node_id in MEMBERS
    ]


def test_a_directory_that_was_lost_is_left_to_join(tmp_path: Path) -> None:
    """Made anew here it would have forgotten what it promised, and nobody would know."""
    cluster_id = found_directories(tmp_path, MEMBERS)
    shutil.rmtree(tmp_path / "n2")

    assert found_directories(tmp_path, MEMBERS) == cluster_id
    assert not (tmp_path / "n2").exists()


def test_most_directories_lost(tmp_path: Path) -> None:
    """What they had acknowledged may be gone, so nobody goes on as if nothing had happened."""
    found_directories(tmp_path, MEMBERS)
    shutil.rmtree(tmp_path / "n1")
    shutil.rmtree(tmp_path / "n2")

    with pytest.raises(FoundingUnfinished, match=r"only n3 of n1, n2, n3 in .* know their cluster"):
        found_directories(tmp_path, MEMBERS)


def test_directories_of_different_clusters(tmp_path: Path) -> None:
    """They are told apart before anything is made."""
    found_directories(tmp_path, MEMBERS)

    with pytest.raises(FoundingUnfinished, match="do not belong to one cluster of n1, n2, n3, n4"):
        found_directories(tmp_path, (*MEMBERS, "n4"))
    assert not (tmp_path / "n4").exists()


@pytest.mark.parametrize("node_ids", [("n1", "n1"), ("N1",), ("../n1",), ("",)])
def test_ids_that_are_none(tmp_path: Path, node_ids: tuple[str, ...]) -> None:
    """They become names of folders."""
    with pytest.raises(ValueError, match="are no ids of nodes"):
        found_directories(tmp_path, node_ids)


@pytest.mark.parametrize(
    ("node", "fits"),
    [
        (NodeConfig(data=Path("d"), node_id="n2", nodes=NODES), True),
        (NodeConfig(data=Path("d"), node_id="n1", nodes=NODES), False),
        (NodeConfig(data=Path("d"), node_id="n2", nodes={**NODES, "n4": "d:4"}), False),
        (NodeConfig(data=Path("d"), node_id="n2"), False),
    ],
)
def test_h074_a_node_is_configured_for_its_directory(node: NodeConfig, fits: bool) -> None:
    """H074: a list of members that differs from the one that the cluster was made with is refused, with both.

    Two nodes whose directories were exchanged would break what they promised each other.
    """
    identity = Identity("c", "n2", 1, MEMBERS)
    if fits:
        check_identity(identity, node)
        return
    with pytest.raises(NodeMismatch, match="d belongs to"):
        check_identity(identity, node)


def test_a_cluster_of_one_need_not_name_its_node() -> None:
    """There is only one that it could be."""
    check_identity(Identity("c", "alone", 1), NodeConfig(data=Path("d")))

    with pytest.raises(NodeMismatch, match="belongs to node alone, and this is configured as other"):
        check_identity(Identity("c", "alone", 1), NodeConfig(data=Path("d"), node_id="other"))


def test_found_command(tmp_path: Path) -> None:
    """Says the id, as JSON."""
    ran = server("found", "--data", str(tmp_path), "--node-ids", "n1,n2,n3")
    again = server("found", "--data", str(tmp_path), "--node-ids", "n1,n2,n3")
    wrong = server("found", "--data", str(tmp_path), "--node-ids", "n1,n2")

    said = json.loads(ran.stdout)
    assert said == {"event": "founded", "cluster_id": said["cluster_id"], "members": ["n1", "n2", "n3"]}
    assert (again.returncode, again.stdout) == (0, ran.stdout)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "do not belong to one cluster" in json.loads(wrong.stderr)["reason"]


def test_check_command_says_all_that_is_wrong(tmp_path: Path) -> None:
    """Of the file, and of what overrides it."""
    file = tmp_path / "stepward.toml"
    file.write_text('[node]\nid = "n9"\n[cluster.nodes]\nn1 = "a:1"\n')

    ran = server("check", "--config", str(file), STEPWARD_PORT="http")

    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.splitlines() == [
        "STEPWARD_PORT: node.port is 'http'; it must be a whole number",
        f"{file}:1: node.data is missing; name the folder that holds what must not be lost",
    ]


def test_check_command_says_what_is_right(tmp_path: Path) -> None:
    """In a few words, so that a person sees whether it is what was meant."""
    file = tmp_path / "stepward.toml"
    file.write_text('[node]\nid = "n2"\n[cluster.nodes]\nn1 = "127.0.0.1:1"\nn2 = "127.0.0.1:9"\nn3 = "127.0.0.1:3"\n')

    ran = server("check", "--config", str(file), "--port", "9", STEPWARD_DATA=str(tmp_path / "d"))
    (tmp_path / "letter.txt").write_text("dear")
    taken = server("check", "--config", str(file), "--port", "9", STEPWARD_DATA=str(tmp_path))

    assert (ran.returncode, ran.stderr) == (0, "")
    assert (taken.returncode, taken.stdout) == (1, "")
    assert "'letter.txt'" in taken.stderr
    assert ran.stdout.splitlines() == [
        f"node n2 listens on 127.0.0.1:9, keeps its data in {tmp_path / 'd'}",
        "its cluster has n1 at 127.0.0.1:1, n3 at 127.0.0.1:3; TLS is off",
    ]
    assert not (tmp_path / "d").exists()


def test_run_refuses_a_directory_of_another_node(tmp_path: Path) -> None:
    """Told with both names, before anything is served."""
    create_cluster(tmp_path / "d", "n2", members=MEMBERS)

    listed = "n1=127.0.0.1:1,n2=127.0.0.1:2,n3=127.0.0.1:3"
    ran = server("run", "--data", str(tmp_path / "d"), "--port", "1", STEPWARD_NODE_ID="n1", STEPWARD_NODES=listed)

    assert ran.returncode == 1
    assert "belongs to node n2, and this is configured as n1" in json.loads(ran.stderr.splitlines()[-1])["reason"]


def test_variables_name_what_the_file_has() -> None:
    """One of them would do nothing otherwise."""
    assert set(VARIABLES.values()) <= set(KEYS)
