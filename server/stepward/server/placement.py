"""What is wrong with where a node is said to be: its folder, what it listens on, and where all nodes are reached."""

from __future__ import annotations

import re
import tempfile
from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.server.addresses import (
    ADDRESS_RULE,
    HOST_RULE,
    bracketed,
    is_host,
    is_loopback,
    is_wildcard,
    parse_address,
    place,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stepward.server.config import NodeConfig

# An odd number: one more node that must agree, and no more that may be gone, is all that an even one brings.
NODES_MAX: Final = 7
NODE_ID: Final = re.compile(r"[a-z0-9-]{1,32}")
NODE_ID_RULE: Final = "it must be 1 to 32 of a to z, 0 to 9 and -"
_COUNTS: Final = "it must be 1, 3, 5 or 7"


class Fault(NamedTuple):
    """One thing that is wrong: which field, with which value, and what it must be."""

    field: str
    value: object
    rule: str


def faults(node: NodeConfig) -> Iterator[Fault]:
    """What is wrong with fields by themselves."""
    yield from _unusable_folder(node.data)
    if NODE_ID.fullmatch(node.node_id) is None:
        yield Fault("node_id", repr(node.node_id), NODE_ID_RULE)
    for field, host in (("host", node.host), ("http_host", node.http_host)):
        if not is_host(host):
            yield Fault(field, repr(host), HOST_RULE)
    if node.advertise:
        yield from _uncallable("advertise", node.advertise)
    if node.nodes:
        yield from _wrong_nodes(node)


def _unusable_folder(folder: Path) -> Iterator[Fault]:
    """Tried with a file that has no name and is gone at once; where the folder is not there yet, beside it."""
    try:
        nearest = next(one for one in (folder, *folder.parents) if one.is_symlink() or one.exists())
        if not nearest.is_dir():
            which = "is none" if nearest == folder else f"cannot be made, since {nearest} is none"
            yield Fault("data", folder, f"it must be a folder, and {which}")
            return
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        yield Fault("data", folder, f"it must be a folder in which this user can write: {error.strerror}")


def _wrong_nodes(node: NodeConfig) -> Iterator[Fault]:
    if node.node_id not in node.nodes:
        yield Fault("node_id", repr(node.node_id), f"it must be one of nodes: {', '.join(sorted(node.nodes))}")
    count = len(node.nodes)
    if count % 2 == 0:
        gone = (count - 1) // 2 or "none"
        yield Fault("nodes", count, f"{_COUNTS}; of {count} nodes {gone} may be gone, as of {count - 1}")
    elif count > NODES_MAX:
        yield Fault("nodes", count, f"{_COUNTS}; each one more has to be sent everything")
    seen: dict[tuple[str, int], str] = {}
    for node_id, text in node.nodes.items():
        if NODE_ID.fullmatch(node_id) is None:
            yield Fault(f"nodes.{node_id}", repr(node_id), NODE_ID_RULE)
        yield from _uncallable(f"nodes.{node_id}", text)
        if (address := parse_address(text)) is not None:
            there = (place(address.host), address.port)
            if there in seen:
                yield Fault(f"nodes.{node_id}", text, f"it must be another than that of {seen[there]}")
            seen.setdefault(there, node_id)


def _uncallable(field: str, text: str) -> Iterator[Fault]:
    address = parse_address(text)
    if address is None:
        yield Fault(field, repr(text), ADDRESS_RULE)
    elif is_wildcard(address.host):
        rule = f"it must be an address that others can call; {address.host} is one to listen on, for host"
        yield Fault(field, text, rule)


def mismatches(node: NodeConfig) -> Iterator[Fault]:
    """What does not fit together, of fields that are right by themselves."""
    yield from _colliding_pages(node)
    ours = parse_address(node.nodes.get(node.node_id, ""))
    if len(node.nodes) < 2 or ours is None:
        return
    if node.port != ours.port:
        rule = f"it must be {ours.port}: there the others look for it, as nodes.{node.node_id} says"
        yield Fault("port", node.port, rule)
    if is_loopback(node.host) and not is_loopback(ours.host):
        rule = f"nobody else can call it there; it must be such as 0.0.0.0, since nodes.{node.node_id} is {ours.host}"
        yield Fault("host", node.host, rule)
    yield from _distrusted(node)


def _colliding_pages(node: NodeConfig) -> Iterator[Fault]:
    """A port of the pages for monitoring that belongs to somebody else."""
    if not node.http_port:
        return
    if node.http_port == node.port and _overlap(node.http_host, node.host):
        yield Fault("http_port", node.http_port, "it must be another than that of the node itself")
    ours = parse_address(node.nodes.get(node.node_id, ""))
    for node_id, text in node.peers.items():
        address = parse_address(text)
        if ours is None or address is None or place(address.host) != place(ours.host):
            continue
        if address.port == node.http_port and _overlap(node.http_host, address.host):
            yield Fault("http_port", node.http_port, f"it must be another than that of {node_id}, on the same machine")


def _overlap(one: str, other: str) -> bool:
    """Whether the same port of both cannot be listened on."""
    return place(one) == place(other) or is_wildcard(one) or is_wildcard(other)


def _distrusted(node: NodeConfig) -> Iterator[Fault]:
    """Nodes on other machines that would refuse this one, as it would refuse them."""
    if node.tls is not None or node.trusted_network:
        return
    addresses = {node_id: parse_address(text) for node_id, text in sorted(node.peers.items())}
    elsewhere = [
        f"{node_id} at {bracketed(address.host)}"
        for node_id, address in addresses.items()
        if address is not None and not (is_loopback(address.host) or is_wildcard(address.host))
    ]
    if elsewhere:
        rule = (
            f"it must be true, or tls be given: without TLS nodes of other machines are refused, such as {elsewhere[0]}"
        )
        yield Fault("trusted_network", "false", rule)
