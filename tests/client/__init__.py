"""Tests of clients and connections."""
