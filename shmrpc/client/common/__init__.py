"""The parts of a client that event loops and threads share."""
