"""Tests of locks, semaphores and their holders."""
