"""What every floor above stands on: the host's clock, deadlines of a loop, and words for a user's mistakes."""
