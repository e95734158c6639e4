"""Memory whose bytes many processes read and write, with a lock of its own."""
