"""Helpers that every other package uses: the host's clock, deadlines, argument checks and hints for error messages."""
