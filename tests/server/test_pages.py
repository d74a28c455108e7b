"""Page tokens: only what was made here, for this list and these filters, is a place."""

from __future__ import annotations

import base64

import pytest

from stepward.server.api import pages
from stepward.server.core.rejections import Reason, Refused

FILTERS = ("jobs", "default", "", [1, 2])


@pytest.mark.parametrize("place", ["a", "0-" + "0" * 32, "\U0001f600", "12.3"])
def test_token_leads_back(place: str) -> None:
    """To the place that it was made of."""
    assert pages.position(FILTERS, pages.token(FILTERS, place)) == place


def test_no_place_is_no_token() -> None:
    """The first page needs none, and the last gives none."""
    assert pages.token(FILTERS, "") == ""
    assert pages.position(FILTERS, "") == ""


@pytest.mark.parametrize(
    "filters",
    [("agents", "default", "", [1, 2]), ("jobs", "other", "", [1, 2]), ("jobs", "default", "x", [1, 2]), ("jobs",)],
)
def test_token_of_another_list(filters: object) -> None:
    """The place would mean something else there."""
    with pytest.raises(Refused) as caught:
        pages.position(filters, pages.token(FILTERS, "a"))

    assert caught.value.rejection.reason is Reason.PAGE_TOKEN_INVALID


def test_every_changed_character_is_noticed() -> None:
    """Anywhere in the token."""
    token = pages.token(FILTERS, "some-place")
    for position, character in enumerate(token):
        other = "A" if character != "A" else "B"
        changed = token[:position] + other + token[position + 1 :]
        with pytest.raises(Refused):
            assert pages.position(FILTERS, changed) == "never reached"


def test_token_that_is_no_text() -> None:
    """Its digest is no secret: a place that was made up could be longer as text than a key may be."""
    place = b"\xff" * 200
    token = base64.urlsafe_b64encode(pages._digest(FILTERS, place) + place).decode().rstrip("=")

    with pytest.raises(Refused) as caught:
        pages.position(FILTERS, token)

    assert caught.value.rejection.reason is Reason.PAGE_TOKEN_INVALID
