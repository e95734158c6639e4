"""Tests of servers, services and handlers."""
