"""The tests of stepward; DESIGN.md says which kind lives where."""
