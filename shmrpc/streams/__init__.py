"""The two ends of a stream, and the credit between them."""
