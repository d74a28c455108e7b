"""Calls over TLS with certificates of both sides, and what somebody is told whose certificates do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from stepward.client import Client, TlsFiles, tls
from stepward.client.errors import TlsFilesWrong
from stepward.v1 import cluster_service_pb2
from tests.certificates import Authority, Files
from tests.client.both_clients import BOTH, Driver
from tests.client.command_line import run
from tests.client.scripted_server import ScriptedServer
from tests.client.test_cluster import said


def well() -> cluster_service_pb2.GetStatusResponse:
    """The status of a node that is well, and stays so however long a test takes: its beat is of later."""
    status: cluster_service_pb2.GetStatusResponse = said("n1", leader=True)
    status.shards[0].supervisor_beat_at.FromDatetime(datetime.now(UTC) + timedelta(hours=1))
    return status


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def ours(authority: Authority) -> Files:
    return authority.files("ann", uri="stepward://client/ann")


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Signed by an authority that nobody here trusts."""
    return Authority(tmp_path_factory.mktemp("strange"), "strange").files("eve", uri="stepward://client/eve")


def serving(files: Files) -> Iterator[ScriptedServer]:
    """A server that shows a certificate and wants to see one."""
    pair = (files.key.read_bytes(), files.certificate.read_bytes())
    server = ScriptedServer(grpc.ssl_server_credentials([pair], files.ca.read_bytes(), require_client_auth=True))
    server.always("GetStatus", well())
    yield server
    server.stop()


@pytest.fixture(scope="module")
def node(authority: Authority) -> Iterator[ScriptedServer]:
    yield from serving(authority.files("n1", uri="stepward://node/n1"))


@pytest.fixture(scope="module")
def elsewhere(authority: Authority) -> Iterator[ScriptedServer]:
    """A node whose certificate names another host."""
    yield from serving(authority.files("n2", uri="stepward://node/n2", hosts=("example.org",)))


def options(files: TlsFiles) -> list[str]:
    named = (("--tls-ca", files.ca), ("--tls-cert", files.certificate), ("--tls-key", files.key))
    return [word for name, path in named if path for word in (name, str(path))]


@pytest.mark.parametrize("drive", BOTH)
def test_calls_go_through(node: ScriptedServer, ours: Files, drive: Driver) -> None:
    """Both sides show a certificate of the authority that both trust."""
    assert drive(node.address, "status", tls=TlsFiles(*ours)).node_id == "n1"


def test_command_line_speaks_tls(node: ScriptedServer, ours: Files) -> None:
    """By options, and by the environment; options win."""
    status = ("cluster", "status", "-o", "jsonl", "--server", node.address)
    environment = {
        "STEPWARD_TLS_CA": str(ours.ca),
        "STEPWARD_TLS_CERT": str(ours.certificate),
        "STEPWARD_TLS_KEY": str(ours.key),
    }

    by_options = run(*status, *options(TlsFiles(*ours)))
    by_environment = run(*status, environment=environment)
    overridden = run(*status, "--tls-ca", "absent.pem", environment=environment)

    assert (by_options.code, by_options.json["node_id"]) == (0, "n1")
    assert (by_environment.code, by_environment.json["node_id"]) == (0, "n1")
    assert overridden.code == 2
    assert "absent.pem cannot be read: No such file or directory" in overridden.stderr


def test_why_a_connection_does_not_come_about(
    node: ScriptedServer,
    elsewhere: ScriptedServer,
    server: ScriptedServer,
    ours: Files,
    strange: Files,
    authority: Authority,
) -> None:
    """Most of these are "Socket closed" for gRPC; a person is told what to mend."""
    starts_at = datetime.now(UTC) - timedelta(days=3)
    old = authority.files("old", uri="stepward://client/old", starts_at=starts_at)
    good = TlsFiles(*ours)

    told = {
        "fits": tls.why_refused(node.address, good),
        "none of ours": tls.why_refused(node.address, TlsFiles(ours.ca)),
        "strange": tls.why_refused(node.address, TlsFiles(ours.ca, strange.certificate, strange.key)),
        "expired": tls.why_refused(node.address, TlsFiles(*old)),
        "distrusted": tls.why_refused(node.address, TlsFiles(strange.ca, ours.certificate, ours.key)),
        "other host": tls.why_refused(elsewhere.address, good),
        "plain": tls.why_refused(node.address, None),
        "no TLS": tls.why_refused(server.address, good),
        "both plain": tls.why_refused(server.address, None),
        "nobody": tls.why_refused("127.0.0.1:1", good),
    }

    refused, distrusted = "the node refuses the certificate in ", "the node's certificate is not trusted: "
    assert {name: why for name, why in told.items() if name not in ("strange", "expired")} == {
        "fits": "",
        "none of ours": "the node wants to see a certificate, and none was given",
        "distrusted": f"{distrusted}unable to get local issuer certificate",
        "other host": f"{distrusted}IP address mismatch, certificate is not valid for '127.0.0.1'.",
        "plain": "the node speaks TLS, and no authority to trust was given",
        "no TLS": "the node speaks no TLS",
        "both plain": "",
        "nobody": "",
    }
    assert told["strange"].startswith(f"{refused}{strange.certificate}: ")
    assert told["expired"].startswith(f"{refused}{old.certificate}: ")


def test_command_line_says_why(node: ScriptedServer, ours: Files) -> None:
    """Under the error of gRPC, and what to do."""
    plain = run("job", "list", "--server", node.address, "--timeout", "500ms")

    assert plain.code == 5
    assert f"{node.address}: the node speaks TLS, and no authority to trust was given; see --tls-ca" in plain.stderr


def test_status_says_why_of_each_node(
    node: ScriptedServer, elsewhere: ScriptedServer, server: ScriptedServer, ours: Files
) -> None:
    """Among the troubles: without TLS where it is spoken, with it where it is not, and with a host that is another."""
    settings = "--tls-ca, --tls-cert and --tls-key, or STEPWARD_TLS_CA, STEPWARD_TLS_CERT and STEPWARD_TLS_KEY"
    plain = run("cluster", "status", "--server", f"{node.address},127.0.0.1:1")
    secured = options(TlsFiles(*ours))
    others = run("cluster", "status", *secured, "--server", f"{server.address},{elsewhere.address}")
    told = [line.partition(": ")[2] for line in (*plain.stderr.splitlines(), *others.stderr.splitlines())]

    assert (plain.code, others.code) == (5, 5)
    assert "127.0.0.1:1 does not answer: Connection refused" in told
    for address, why in (
        (node.address, "the node speaks TLS, and no authority to trust was given"),
        (server.address, "the node speaks no TLS"),
        (elsewhere.address, "the node's certificate is not trusted: IP address mismatch, "),
    ):
        (line,) = (line for line in told if line.startswith(f"{address} does not answer: "))
        assert why in line
        assert line.endswith(f"; see {settings}")


def test_files_that_cannot_be_used(ours: Files, strange: Files, tmp_path: Path) -> None:
    """They are found out before a connection is tried, by name."""
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing\n")
    wrong: dict[str, Any] = {}
    for name, files in {
        "absent": TlsFiles(tmp_path / "no.pem"),
        "no authority": TlsFiles(empty),
        "key absent": TlsFiles(ours.ca, ours.certificate, tmp_path / "no.key"),
        "no certificate": TlsFiles(ours.ca, empty, ours.key),
        "other key": TlsFiles(ours.ca, ours.certificate, strange.key),
        "half": TlsFiles(ours.ca, ours.certificate),
    }.items():
        with pytest.raises(TlsFilesWrong) as caught:
            Client("localhost", tls=files)
        wrong[name] = str(caught.value)

    assert wrong == {
        "absent": f"{tmp_path}/no.pem cannot be read: No such file or directory",
        "no authority": f"{empty} holds no certificate of an authority in PEM",
        "key absent": f"{tmp_path}/no.key cannot be read: No such file or directory",
        "no certificate": f"{empty} is no certificate in PEM to which the key in {ours.key} belongs",
        "other key": f"{ours.certificate} is no certificate in PEM to which the key in {strange.key} belongs",
        "half": "a certificate and its key are given together, or neither is",
    }


def test_one_way_to_secure_is_enough(ours: Files) -> None:
    """Two of them would leave open which one counts."""
    files = TlsFiles(*ours)
    with pytest.raises(ValueError, match="tls and credentials are both given"):
        Client("localhost", tls=files, credentials=files.credentials())


def test_certificate_without_authority_is_refused(ours: Files) -> None:
    """It would be shown to anybody who listens there."""
    ran = run("job", "list", "--tls-cert", str(ours.certificate), "--tls-key", str(ours.key))

    assert ran.code == 2
    assert "--tls-ca says whom you trust, and is missing" in ran.stderr
