"""Opening a shared object by its name alone, and listing the objects and members that exist on this host."""
