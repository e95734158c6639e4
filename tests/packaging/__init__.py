"""Tests of the package and its tools."""
