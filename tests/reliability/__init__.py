"""A peer may die or lie: nothing hangs, nothing crashes, nothing leaks. docs/reliability.md has the table."""
