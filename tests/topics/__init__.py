"""Tests of topics."""
