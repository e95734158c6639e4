"""Frames through shared memory: meeting, segment, doorbells, and the proof that the peer lives."""
