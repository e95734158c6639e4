"""Tests of stopped processes, signals and clocks."""
