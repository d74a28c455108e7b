"""Where a node is said to be: what cannot work is told before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepward.server import config
from stepward.server.addresses import ADDRESS_RULE, HOST_RULE, Address, parse_address, place
from stepward.server.config import ClusterConfig, NodeConfig, TlsFiles

LOCAL = {"n1": "127.0.0.1:7654", "n2": "127.0.0.1:7664", "n3": "localhost:7674"}
REMOTE = {"n1": "10.0.0.1:7654", "n2": "b.example.org:7654", "n3": "[fd00::3]:7654"}
FILES = TlsFiles(ca=Path(__file__), certificate=Path(__file__), key=Path(__file__))
# A cluster on three machines that is configured as it must be.
SPREAD: Mapping[str, Any] = {"nodes": REMOTE, "host": "0.0.0.0", "trusted_network": True}


def complaints(**fields: Any) -> list[str]:
    node = msgspec.structs.replace(NodeConfig(data=Path("data")), **fields)
    return [str(problem) for problem in config.problems(ClusterConfig(), node)]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host:1", Address("host", 1)),
        ("a_b.example.org.:65535", Address("a_b.example.org.", 65_535)),
        ("10.0.0.1:7654", Address("10.0.0.1", 7_654)),
        ("[::1]:7654", Address("::1", 7_654)),
        ("host:65536", None),
        ("host:0", None),
        ("host", None),
        ("::1:7654", None),
        ("[::1:7654", None),
        ("[host]:7654", None),
        ("http://host:1", None),
        ("host:1 ", None),
        ("host:+1", None),
        (":1", None),
        ("a..b:1", None),
        ("-a:1", None),
        ("a-:1", None),
        ("a b:1", None),
        ("10.0.0.256:1", None),
        ("10.0.0:1", None),
        (f"{'x' * 63}:1", Address("x" * 63, 1)),
        (f"{'x' * 64}:1", None),
        (f"{'.'.join(['x' * 50] * 5)[:253]}:1", Address(".".join(["x" * 50] * 5)[:253], 1)),
        (f"{'.'.join(['x' * 50] * 5)[:253]}x:1", None),
    ],
)
def test_addresses(text: str, address: Address | None) -> None:
    """A name or a number that can be one, and a port."""
    assert parse_address(text) == address
    assert complaints(advertise=text) == ([] if address else [f"advertise is {text!r}; {ADDRESS_RULE}"])


@pytest.mark.parametrize(
    ("one", "other"), [("Localhost", "127.0.0.1"), ("[::1]", "0:0::1"), ("A.Example.org.", "a.example.org")]
)
def test_hosts_that_are_one(one: str, other: str) -> None:
    """However they are written."""
    assert place(one) == place(other)


@pytest.mark.parametrize(
    ("host", "good"), [("0.0.0.0", True), ("::", True), ("[::1]", True), ("h:1", False), ("", False), ("1.2.3", False)]
)
def test_hosts_to_listen_on(host: str, good: bool) -> None:
    """For the node and for its pages."""
    found = [] if good else [f"host is {host!r}; {HOST_RULE}", f"http_host is {host!r}; {HOST_RULE}"]

    assert complaints(host=host, http_host=host) == found


@pytest.mark.parametrize(
    ("count", "rule"),
    [
        (1, ""),
        (2, "of 2 nodes none may be gone, as of 1"),
        (3, ""),
        (4, "of 4 nodes 1 may be gone, as of 3"),
        (5, ""),
        (6, "of 6 nodes 2 may be gone, as of 5"),
        (7, ""),
        (8, "of 8 nodes 3 may be gone, as of 7"),
        (9, "each one more has to be sent everything"),
    ],
)
def test_number_of_nodes(count: int, rule: str) -> None:
    """An even one costs a node that must agree, and wins nothing."""
    nodes = {f"n{number}": f"127.0.0.1:{7653 + number}" for number in range(1, count + 1)}

    assert complaints(nodes=nodes) == ([f"nodes is {count}; it must be 1, 3, 5 or 7; {rule}"] if rule else [])


def test_clusters_that_are_well() -> None:
    """On one machine, and on three with either kind of trust."""
    assert complaints(nodes=LOCAL) == []
    assert complaints(**SPREAD) == []
    assert complaints(**{**SPREAD, "trusted_network": False, "tls": FILES}) == []
    # One node alone listens where nobody expects it.
    assert complaints(port=0, http_port=7654) == []


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (
            {"nodes": {**LOCAL, "n3": "LOCALHOST:7664"}},
            "nodes.n3 is LOCALHOST:7664; it must be another than that of n2",
        ),
        (
            {"nodes": {**LOCAL, "n3": "0.0.0.0:7674"}},
            "nodes.n3 is 0.0.0.0:7674; it must be an address that others can call; 0.0.0.0 is one to listen on, for "
            "host",
        ),
        (
            {"nodes": LOCAL, "port": 7655},
            "port is 7655; it must be 7654: there the others look for it, as nodes.n1 says",
        ),
        ({"nodes": LOCAL, "port": 0}, "port is 0; it must be 7654: there the others look for it, as nodes.n1 says"),
        ({"nodes": LOCAL, "http_port": 7654}, "http_port is 7654; it must be another than that of the node itself"),
        (
            {"nodes": LOCAL, "http_port": 7664},
            "http_port is 7664; it must be another than that of n2, on the same machine",
        ),
        ({"http_port": 7654, "http_host": "::"}, "http_port is 7654; it must be another than that of the node itself"),
        (
            {**SPREAD, "host": "127.0.0.1"},
            "host is 127.0.0.1; nobody else can call it there; it must be such as 0.0.0.0, since nodes.n1 is 10.0.0.1",
        ),
        (
            {**SPREAD, "trusted_network": False},
            "trusted_network is false; it must be true, or tls be given: without TLS nodes of other machines are "
            "refused, such as n2 at b.example.org",
        ),
    ],
)
def test_what_does_not_fit_together(fields: dict[str, Any], found: str) -> None:
    """Each of these starts, and then waits for the others for ever."""
    assert complaints(**fields) == [found]


@pytest.mark.parametrize("fields", [{"http_host": "127.0.0.2"}, {"http_port": None}, {"port": 0, "http_port": 0}])
def test_ports_that_do_not_meet(fields: dict[str, Any]) -> None:
    """One port may be used twice at different addresses."""
    assert complaints(**{"port": 7654, "http_port": 7654, **fields}) == []


def test_folders(tmp_path: Path) -> None:
    """One that is there or can be made; nothing is left of the trial."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    file, link = tmp_path / "file", tmp_path / "link"

    assert complaints(data=tmp_path) == []
    assert complaints(data=tmp_path / "new" / "deeper") == []
    assert complaints(data=file) == [f"data is {file}; it must be a folder, and is none"]
    assert complaints(data=link) == [f"data is {link}; it must be a folder, and is none"]
    assert complaints(data=file / "d") == [
        f"data is {file}/d; it must be a folder, and cannot be made, since {file} is none"
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


@pytest.mark.parametrize("data", ["/proc/stepward", f"/tmp/{'x' * 256}"])
def test_folders_that_cannot_be_written(data: str) -> None:
    """Tried, since what a mode says is not the whole truth."""
    (found,) = complaints(data=Path(data))

    assert found.startswith(f"data is {data}; it must be a folder in which this user can write: ")
