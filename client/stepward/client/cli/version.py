"""`stepward version`."""

from __future__ import annotations

import platform
from importlib import metadata

import click

PACKAGES = ("grpcio", "protobuf")


@click.command()
def version() -> None:
    """Print the version of stepward and of what it stands on."""
    print_version()


def print_version() -> None:
    """One line, also for `stepward --version`."""
    rest = ", ".join(f"{name} {installed(name)}" for name in PACKAGES)
    click.echo(f"stepward {installed('stepward')} (Python {platform.python_version()}, {rest})")


def installed(name: str) -> str:
    """The version of an installed package; a checkout that was never installed has none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
