"""Find servers on a host: runtime directories, names, users, resource limits, and the cleanup after dead processes."""
