"""The rules as transcripts: what is written below each command is what comes of it."""

from pathlib import Path

import pytest

from tests.scenarios import blocks
from tests.scenarios.blocks import TranscriptError
from tests.scenarios.transcript import play

DATA = Path(__file__).parent / "data"
TRANSCRIPTS = sorted(DATA.glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, *, rewrite: bool) -> None:
    """The rules give what the transcript says, word for word."""
    told = path.read_text()
    played = play(told)
    if rewrite:
        path.write_text(played)
        return

    assert played == told


def test_there_are_transcripts() -> None:
    """A folder that was not found would be green."""
    assert TRANSCRIPTS != []


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript_says_why(path: Path) -> None:
    """A transcript begins with the rule that it stands for."""
    assert path.read_text().startswith("# ")


def test_a_wrong_result_is_noticed() -> None:
    """Otherwise every transcript would be green."""
    told = "cancel job=j1\n----\ncancelling j1\n"

    assert play(told) != told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sweep subject=1", r"nobody understands \['subject'\]"),
        ("sweep now", r"nobody understands \['now'\]"),
        ("swep", "there is no command 'swep'"),
        ("session sleep agent-one", "a session can"),
        ("show me", "nobody can show 'me'"),
        ("report step=a outcome=good", "there is no outcome 'good'"),
        ("report step=a", "outcome= is missing"),
        ("session open", "a word is missing"),
        ("  step", "needs a command above it"),
        ("define d\n  a\n  b need=a", r"nobody understands \['need'\]"),
        ("sweep at=5\nsweep at=6", "a block is one batch with one time"),
        ("sweep at=5\n\nsweep at=4", "time goes forward"),
        ("sweep\n\nlimits session_ttl_ms=5", "limits come before everything else"),
        ("limits ttl=5", r"nobody understands \['ttl'\]"),
    ],
)
def test_a_misspelt_command_is_noticed(text: str, message: str) -> None:
    """What nobody understands must not pass for a default."""
    with pytest.raises(TranscriptError, match=message):
        play(text)


def test_text_comes_back() -> None:
    """Comments, quoting and order are the author's."""
    text = "# Why.\n# More.\n\nsweep  at=5\n# Between.\nshow slots 'a b'\n----\none\n  two\n\nsweep\n----\n"

    assert blocks.write(blocks.read(text)) == text
