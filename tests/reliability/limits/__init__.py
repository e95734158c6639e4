"""Tests of exhausted resources."""
