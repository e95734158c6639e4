"""What holds for every client: of loops (on asyncio and on uvloop), of threads, and of the in-memory transport."""
