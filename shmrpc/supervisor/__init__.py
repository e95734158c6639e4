"""What ``shmrpc serve`` does around a server: workers, restarts, signals."""
