"""Tests of the death of a process."""
