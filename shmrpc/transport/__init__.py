"""How frames travel: over shared memory between processes, and within one loop."""
