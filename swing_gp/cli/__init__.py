"""The command line: the arguments of all commands in one module, and one module a command that does the work."""
