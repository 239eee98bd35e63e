"""Tools without mathematics: input checks and their messages, files, memory, progress bars."""
