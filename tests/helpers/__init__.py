"""Helpers of tests in several folders: services, servers and members in other processes, hostile peers, and checks."""
