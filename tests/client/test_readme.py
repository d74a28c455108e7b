"""The definition of the README in YAML and that of docs/jobs.md in Python are one."""

from __future__ import annotations

import re
from typing import Any

from stepward.client.definition_file import loads
from tests.repo.sources import ROOT

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def block(page: str, language: str, word: str) -> str:
    """The one block of code of a page that has this word."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (found,) = (code for kind, code in BLOCK.findall(text) if kind == language and word in code)
    return str(found)


def test_yaml_and_python_of_the_pages_are_one_definition() -> None:
    """Byte for byte, as the page says."""
    python, _, talks_to_a_server = block("docs/jobs.md", "python", 'Definition("thumbs")').partition("with Client(")
    names: dict[str, Any] = {}
    exec(python, names)

    assert "client.apply_definition(thumbs)" in talks_to_a_server
    assert names["thumbs"].to_proto() == loads(block("README.md", "yaml", "name: thumbs"))
