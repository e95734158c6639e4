"""Tests of the encoding of values."""
