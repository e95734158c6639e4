"""Named by what goes wrong in them."""
