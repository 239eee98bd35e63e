"""What knows no mathematics: checks of input and their messages, files, memory, progress."""
