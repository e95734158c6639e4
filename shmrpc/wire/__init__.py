"""What the two sides say to each other: sans I/O, so it opens no socket and maps no memory."""
