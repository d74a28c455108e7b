"""The README's definition in YAML and in Python are one."""

from __future__ import annotations

import re
from typing import Any

from stepward.client.definition_file import loads
from tests.repo.sources import ROOT

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def block(language: str, word: str) -> str:
    """The one block of code that has this word."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (found,) = (text for kind, text in BLOCK.findall(readme) if kind == language and word in text)
    return str(found)


def test_yaml_and_python_of_the_readme_are_one_definition() -> None:
    """Byte for byte, as the sentence between them says."""
    python, _, talks_to_a_server = block("python", 'Definition("thumbs")').partition("with Client(")
    names: dict[str, Any] = {}
    exec(python, names)

    assert "client.apply_definition(thumbs)" in talks_to_a_server
    assert names["thumbs"].to_proto() == loads(block("yaml", "name: thumbs"))
