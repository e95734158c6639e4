"""Measure calls: direct, from thread to thread, from process to process, and beside a UNIX socket.

``python -m benchmark`` asks the questions in :mod:`benchmark.questions`, each in interleaved rounds.
"""
