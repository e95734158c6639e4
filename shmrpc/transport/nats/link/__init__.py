"""The connection of this process to a NATS server."""
