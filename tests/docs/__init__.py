"""Tests of the documents and the messages that they quote."""
