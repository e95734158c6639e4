"""What all methods of Python's standard library consist of, measured one by one, by a pool of processes."""
