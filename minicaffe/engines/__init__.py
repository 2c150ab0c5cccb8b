"""Engines, which compute operations: the choice between them, epilogues, and the layouts in which they leave arrays."""
