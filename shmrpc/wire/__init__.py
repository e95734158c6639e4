"""Frames and their MessagePack bodies, without I/O: opens no socket and maps no memory."""
