"""Tests that every client must pass: of loops (asyncio and uvloop), of threads, and of the in-memory transport."""
