"""Services to read, run and call."""
