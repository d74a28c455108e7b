"""The pages speak of commands, files and pages that exist."""

import importlib
import re
import shlex
from pathlib import PurePosixPath

import click
import pytest

from tests.repo.sources import ROOT, files, texts

PAGES = tuple(path for path in files() if path.endswith(".md"))

CODE_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
INPUT_FILE = re.compile(r"-i @(\S+)")
AGENT_MODULE = re.compile(r"agent run ([\w.]+)")
TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
EXAMPLES = "agents/stepward/agents/examples/"


def commands(page: str) -> list[str]:
    """What a page tells its reader to type: lines of code blocks, and code between words."""
    text = texts()[page]
    blocks = CODE_BLOCK.findall(text)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return lines + INLINE_CODE.findall(CODE_BLOCK.sub("", text))


def make_lines(page: str) -> list[list[str]]:
    """The words of each line that runs make, without comments and variables."""
    lines = (shlex.split(line, comments=True) for line in commands(page) if line.startswith("make "))
    return [[word for word in line if "=" not in word] for line in lines]


def test_readme_begins_with_two_commands() -> None:
    """One sees it work, one sees it tested; nothing has to be installed first."""
    assert [words[1] for words in make_lines("README.md")][:2] == ["demo", "test"]


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    """A reader copies what stands there."""
    targets = set(TARGET.findall(texts()["Makefile"]))
    wanted = {target for words in make_lines(page) for target in words[1:] if not target.startswith("-")}

    assert wanted <= targets


@pytest.mark.parametrize("page", PAGES)
def test_stepward_commands_exist(page: str) -> None:
    """Every word up to the first argument names a command."""
    if "client/stepward/client/cli.py" not in files() and "client/stepward/client/cli/__init__.py" not in files():
        # The command line has not been written yet.
        return
    main: click.Command = importlib.import_module("stepward.client.cli").main
    lines = [shlex.split(line, comments=True) for line in commands(page) if line.startswith("stepward ")]

    unknown = [" ".join(words) for words in lines if not is_command(main, words[1:])]

    assert unknown == []


def is_command(command: click.Command, words: list[str]) -> bool:
    """Whether the words lead from a group to a command of it, whatever follows then."""
    if not isinstance(command, click.Group):
        return True
    inner = command.get_command(click.Context(command), words[0]) if words else None
    return not words or words[0].startswith("-") or (inner is not None and is_command(inner, words[1:]))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """A link is relative to its page."""
    folder = (ROOT / page).parent
    gone = [target for target in LINK.findall(texts()[page]) if not (folder / target).exists()]

    assert gone == []


@pytest.mark.parametrize("page", PAGES)
def test_examples_exist(page: str) -> None:
    """The inputs and agents that a page runs lie in the examples."""
    lines = commands(page)
    wanted = {path for line in lines for path in INPUT_FILE.findall(line)}
    modules = {module for line in lines for module in AGENT_MODULE.findall(line) if module.startswith("stepward.")}
    wanted |= {f"agents/{module.replace('.', '/')}.py" for module in modules}
    if not any(path.startswith(EXAMPLES) and PurePosixPath(path).stem != "__init__" for path in files()):
        # No example has been written yet.
        return

    assert {path for path in wanted if path not in files()} == set()


def test_makefile_lists_its_targets_in_its_head() -> None:
    """The head of the Makefile is its manual: it names nothing that is gone."""
    text = texts()["Makefile"]
    head = text[: text.index("\n\n")]
    named = set(re.findall(r"^#   make ([a-z-]+)", head, re.MULTILINE))

    assert named
    assert named <= set(TARGET.findall(text))
