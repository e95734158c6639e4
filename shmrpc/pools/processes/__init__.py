"""Start worker processes: by a fork server, or by exec."""
