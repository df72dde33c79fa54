"""The metrics of a script or command, read from what it writes while it runs: its output, files, the files of loggers."""
