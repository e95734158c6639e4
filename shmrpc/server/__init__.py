"""The server's side of a call: handlers of requests, and the life of a call up to its reply."""
