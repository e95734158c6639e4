"""Semaphores, locks and events that the tasks and threads of many processes share."""
