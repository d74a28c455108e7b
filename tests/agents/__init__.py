"""Tests of the agents' portion: the pure session by tables and transcripts, the rest against a stub server."""
