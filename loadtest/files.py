"""The options for TLS of the load's and the agent's process."""

from __future__ import annotations

import argparse

from stepward.client.tls import TlsFiles


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """Let a command line name the files."""
    for name, text in (
        ("ca", "speak TLS, and trust whom this has signed"),
        ("cert", "certificate"),
        ("key", "its key"),
    ):
        parser.add_argument(f"--tls-{name}", metavar="FILE", help=text)


def tls_of(given: argparse.Namespace) -> TlsFiles | None:
    """The files that it names; None: plain text."""
    return TlsFiles(given.tls_ca, given.tls_cert, given.tls_key) if given.tls_ca else None
