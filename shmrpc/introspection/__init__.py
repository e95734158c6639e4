"""What a service offers, in words and types."""
