"""Tests of all kinds of shared objects."""
