"""Topics: many processes publish messages, and each subscriber reads all of them."""
