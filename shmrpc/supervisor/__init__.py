"""Run ``shmrpc serve``: a server in this process, or a supervisor with worker processes."""
