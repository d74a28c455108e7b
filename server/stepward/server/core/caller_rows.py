"""What is stored of the ends of jobs for those who submitted them under a name of their own."""

from __future__ import annotations

from stepward.server.core.rows import Row


class CallerEnds(Row, frozen=True):
    """Jobs of one caller that ended, or began to wait for a person, in one batch (`e`); whose and which is in the key.

    A job stands in one of these at most, in that of its newest end. None is empty.
    """

    job_ids: tuple[str, ...]


class EndsGone(Row, frozen=True):
    """Up to which batch ends of jobs may no longer be told, since some of these jobs have been removed (`g`)."""

    sequence: int
