"""The exhibits, by what they are about."""

from tests.museum.exhibits import (
    attempts_and_waits,
    graphs_and_slices,
    incidents,
    outside_the_rules,
    rows_and_lists,
    sessions_and_offers,
    tokens_and_reports,
    undoing,
    verbs,
)

ROOMS = {
    "Tokens and reports": tokens_and_reports.EXHIBITS,
    "Attempts and waits": attempts_and_waits.EXHIBITS,
    "Undoing": undoing.EXHIBITS,
    "Sessions and offers": sessions_and_offers.EXHIBITS,
    "Graphs and slices": graphs_and_slices.EXHIBITS,
    "Rows and lists": rows_and_lists.EXHIBITS,
    "What people do by hand": verbs.EXHIBITS,
    "Incidents and the ledger": incidents.EXHIBITS,
    "Logbook, store and agents": outside_the_rules.EXHIBITS,
}
EXHIBITS = tuple(exhibit for exhibits in ROOMS.values() for exhibit in exhibits)
