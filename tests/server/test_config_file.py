"""A node's file: everything is read, and whatever is wrong is told at once, with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepward.server.addresses import ADDRESS_RULE
from stepward.server.config import ClusterConfig, NodeConfig, TlsFiles
from stepward.server.config_file import FILE_BYTES_MAX, KEYS, ConfigInvalid, Override, lines_of, read
from stepward.server.core.limits import Limits

WHOLE = """
[node]
id = "n2"
data = "data/n2"
host = "0.0.0.0"
port = 7001
advertise = "n2.example.org:7001"

[cluster]
session_ttl_ms = 9_000
retention_ms = 86_400_000

[cluster.nodes]
n1 = "10.0.0.1:7001"
n2 = "10.0.0.2:7001"
n3 = "10.0.0.3:7001"

[http]
host = "0.0.0.0"
port = 9001

[tls]
ca = "ca.pem"
certificate = "/etc/stepward/n2.pem"
key = "n2.key"

[incidents]
webhook_url = "https://example.org/hook"
webhook_secret_file = "secret"

[limits]
streams_max = 20
gather_ms_max = 2.5
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "stepward.toml"
    path.write_text(text)
    return path


def complaints(path: Path | None, *overrides: Override) -> list[str]:
    with pytest.raises(ConfigInvalid) as caught:
        read(path, overrides)
    return [problem.line for problem in caught.value.problems]


def test_a_whole_file(tmp_path: Path) -> None:
    """Relative paths count from the folder of the file, so that a node starts the same from anywhere."""
    for name in ("ca.pem", "n2.key"):
        (tmp_path / name).touch()
    (tmp_path / "secret").write_text("x" * 16)
    text = WHOLE.replace("/etc/stepward/n2.pem", str(tmp_path / "ca.pem"))

    found = read(written(tmp_path, text))

    assert found.cluster == ClusterConfig(limits=Limits(session_ttl_ms=9_000, retention_ms=86_400_000))
    assert found.node == NodeConfig(
        data=tmp_path / "data" / "n2",
        node_id="n2",
        host="0.0.0.0",
        port=7001,
        advertise="n2.example.org:7001",
        nodes={"n1": "10.0.0.1:7001", "n2": "10.0.0.2:7001", "n3": "10.0.0.3:7001"},
        http_host="0.0.0.0",
        http_port=9001,
        tls=TlsFiles(ca=tmp_path / "ca.pem", certificate=tmp_path / "ca.pem", key=tmp_path / "n2.key"),
        webhook_url="https://example.org/hook",
        webhook_secret_file=tmp_path / "secret",
        streams_max=20,
        gather_ms_max=2.5,
    )


def test_what_is_not_said_has_its_default(tmp_path: Path) -> None:
    """A cluster of one needs nothing but a place for its data."""
    found = read(written(tmp_path, '[node]\ndata = "d"\n'))

    assert found == (ClusterConfig(), NodeConfig(data=tmp_path / "d"))


def test_every_field_of_a_node_can_be_set() -> None:
    """One that is forgotten here would be a constant that pretends to be a choice."""
    sections = {"id": "node_id", "certificate": "tls", "ca": "tls", "key": "tls", "http_enabled": "http_port"}
    named = {sections.get(name, name) for name in ("_".join(key) if key[0] == "http" else key[-1] for key in KEYS)}

    assert named - {"session_ttl_ms", "retention_ms"} == set(NodeConfig.__struct_fields__)


def test_overrides_count_more_than_the_file(tmp_path: Path) -> None:
    """The same file for all nodes, and the rest from the environment of each. The last one counts."""
    path = written(tmp_path, '[node]\nid = "n1"\ndata = "d"\nport = 1\n')

    found = read(
        path,
        [
            Override("STEPWARD_NODE_ID", ("node", "id"), "n3"),
            Override("STEPWARD_PORT", ("node", "port"), "2"),
            Override("--port", ("node", "port"), "3"),
            Override("STEPWARD_TRUSTED_NETWORK", ("node", "trusted_network"), "true"),
            Override("STEPWARD_NODES", ("cluster", "nodes"), "n1=a:1, n2=b:2,n3=[::1]:3"),
            Override("--data", ("node", "data"), "here"),
        ],
    )

    assert found.node == NodeConfig(
        data=Path("here"), node_id="n3", port=3, trusted_network=True, nodes={"n1": "a:1", "n2": "b:2", "n3": "[::1]:3"}
    )


@pytest.mark.parametrize(
    ("text", "port"), [("enabled = true", 0), ("port = 9", 9), ("enabled = false\nport = 9", None)]
)
def test_pages_for_monitoring(tmp_path: Path, text: str, port: int | None) -> None:
    """They may be off, whatever their port."""
    assert read(written(tmp_path, f'[node]\ndata = "d"\n[http]\n{text}\n')).node.http_port == port


def test_a_flag_that_is_none(tmp_path: Path) -> None:
    """TOML has words for it."""
    path = written(tmp_path, '[node]\ndata = "d"\n[http]\nenabled = "no"\n')

    assert complaints(path) == [f"{path}:4: http.enabled is 'no'; it must be true or false"]


def test_no_file_is_needed() -> None:
    """All of it may come from outside."""
    assert read(None, [Override("--data", ("node", "data"), "d")]).node == NodeConfig(data=Path("d"))


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    """With the line, the value and the bound."""
    path = written(
        tmp_path,
        """# a comment
[node]
id = 4
port = 65536
hots = "x"

[cluster]
session_ttl_ms = 7_999
nodes = { n1 = "a:1", n2 = "a:1", n3 = 3 }

[tls]
ca = "nowhere.pem"

[limits]
streams_max = "many"
reads_max = 1.5
calls_max = true
steps_max = 7

[nodes]
n1 = "a:1"
""",
    )

    assert complaints(path) == [
        f"{path}:5: node.hots is not known; is node.host meant?",
        f"{path}:18: limits.steps_max is not known; is limits.streams_max meant?",
        f"{path}:20: nodes is not known; is cluster.nodes meant?",
        f"{path}:3: node.id is 4; it must be text, in quotes",
        f"{path}:15: limits.streams_max is 'many'; it must be a whole number",
        f"{path}:16: limits.reads_max is 1.5; it must be a whole number",
        f"{path}:17: limits.calls_max is True; it must be a whole number",
        f"{path}:9: cluster.nodes.n3 is 3; {ADDRESS_RULE}",
        f"{path}:11: tls.certificate is missing; it must be there with tls.ca",
        f"{path}:11: tls.key is missing; it must be there with tls.ca",
        f"{path}:2: node.data is missing; name the folder that holds what must not be lost",
    ]


def test_bounds_are_told_with_their_line(tmp_path: Path) -> None:
    """In the words of the file, also where two fields have to fit."""
    path = written(
        tmp_path,
        """[node]
id = "n1"
data = "d"
port = 65536
[cluster]
session_ttl_ms = 7_999
[cluster.nodes]
n2 = "a:1"
n3 = "a:1"
n4 = "a"
""",
    )

    assert complaints(path, Override("STEPWARD_RETENTION_MS", ("cluster", "retention_ms"), "1")) == [
        "STEPWARD_RETENTION_MS: cluster.retention_ms is 1; it must be between 1000 and 315360000000",
        f"{path}:4: node.port is 65536; it must be between 0 and 65535",
        f"{path}:2: node.id is 'n1'; it must be one of nodes: n2, n3, n4",
        f"{path}:9: cluster.nodes.n3 is a:1; it must be another than that of n2",
        f"{path}:10: cluster.nodes.n4 is 'a'; {ADDRESS_RULE}",
        f"{path}:6: cluster.session_ttl_ms is 7999; with several nodes it must be at least 8000, or a change of leader "
        "ends sessions",
    ]


@pytest.mark.parametrize("text", ["n1", "n1=a:1,n1=b:1", "", "n1=a:1,"])
def test_nodes_of_the_environment_that_are_none(text: str) -> None:
    """It is told how they are written."""
    found = complaints(
        None, Override("--data", ("node", "data"), "d"), Override("STEPWARD_NODES", ("cluster", "nodes"), text)
    )

    assert found == [
        f"STEPWARD_NODES: cluster.nodes is {text!r}; it must be as in n1=host:7654,n2=host:7654, each node once"
    ]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("nodes = {}", "cluster.nodes is {}; it must be a table of addresses by node id"),
        ('nodes = ["a:1"]', "cluster.nodes is ['a:1']; it must be a table of addresses by node id"),
    ],
)
def test_nodes_of_the_file_that_are_none(tmp_path: Path, given: str, complaint: str) -> None:
    """It is told how they are written."""
    path = written(tmp_path, f'[node]\ndata = "d"\n[cluster]\n{given}\n')

    assert complaints(path)[0].startswith(f"{path}:4: {complaint}")


def test_a_number_from_outside_that_is_none() -> None:
    """It stands in the message as it came."""
    found = complaints(None, Override("STEPWARD_PORT", ("node", "port"), "http"))

    assert found[0] == "STEPWARD_PORT: node.port is 'http'; it must be a whole number"


def test_what_is_no_toml(tmp_path: Path) -> None:
    """The reader of TOML knows the line."""
    path = written(tmp_path, "[node]\ndata = \n")

    (complaint,) = complaints(path)
    assert complaint.startswith(f"{path}:2: it is no TOML: Invalid value")


def test_which_node_of_several_must_be_said(tmp_path: Path) -> None:
    """Three nodes with one default id would be one node three times."""
    listed = '[cluster.nodes]\nn1 = "127.0.0.1:1"\nn2 = "127.0.0.1:2"\nn3 = "127.0.0.1:3"\n'
    path = written(tmp_path, f'[node]\ndata = "d"\n{listed}')

    assert complaints(path) == [
        f"{path}:1: node.id is missing; with several nodes it must say which of them this one is: n1, n2, n3"
    ]
    for name in ("n1", "n2", "n3"):
        overrides = [Override("--node-id", ("node", "id"), name), Override("--port", ("node", "port"), name[1:])]
        assert read(path, overrides).node.node_id == name


def test_where_trust_is_missing(tmp_path: Path) -> None:
    """It is told under the name that the file has for it."""
    listed = '[cluster.nodes]\nn1 = "10.0.0.1:7654"\nn2 = "10.0.0.2:7654"\nn3 = "10.0.0.3:7654"\n'
    path = written(tmp_path, f'[node]\nid = "n1"\ndata = "d"\nhost = "::"\n{listed}')

    (complaint,) = complaints(path)
    assert complaint.startswith(f"{path}:1: node.trusted_network is false; it must be true, or tls be given")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Told with its path."""
    (tmp_path / "latin").write_bytes(b"# caf\xe9")
    (tmp_path / "large").write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    (tmp_path / "largest").write_bytes(b"#" * FILE_BYTES_MAX)

    assert complaints(tmp_path / "none") == [f"{tmp_path}/none: it cannot be read: No such file or directory"]
    assert complaints(tmp_path / "latin") == [f"{tmp_path}/latin: byte 5 is no UTF-8, which TOML is"]
    assert complaints(tmp_path / "large") == [f"{tmp_path}/large: it must be at most {FILE_BYTES_MAX} bytes"]
    assert complaints(tmp_path / "largest") == [
        f"{tmp_path}/largest: node.data is missing; name the folder that holds what must not be lost"
    ]


def test_lines() -> None:
    """Of sections and keys, however they are written."""
    assert lines_of('a = 1\n\n[ b ]\n  "c" = 2 # [d]\n[b.e]\nf.g = 3\n') == {
        ("a",): 1,
        ("b",): 3,
        ("b", "c"): 4,
        ("b", "e"): 5,
        ("b", "e", "f", "g"): 6,
    }
