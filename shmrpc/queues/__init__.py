"""Queues: many processes put items, and each item goes to one of the processes that get items."""
