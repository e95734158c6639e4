"""Memory that many processes read and write, with a lock."""
