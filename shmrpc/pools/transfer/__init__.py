"""Move functions, shared values, failures and log records between a pool and its workers."""
