"""This host as the meeting place of its processes: names, locks and sockets, users, and what is left behind."""
