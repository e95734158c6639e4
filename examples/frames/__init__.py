"""Frames that one process makes, three work on and one puts together, over two queues: see ``__main__``."""
