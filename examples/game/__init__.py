"""Players in processes of their own change one world, which survives a killed player: see ``__main__``."""
