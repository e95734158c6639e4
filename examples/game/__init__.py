"""Players in processes of their own change one world, which survives whoever is killed: see ``__main__``."""
