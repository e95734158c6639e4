"""Names whose members are equals: memory, semaphores, locks and events that need no server and outlive no process."""
