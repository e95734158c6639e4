"""Queues: many processes put items, many get them, in one order for all."""
