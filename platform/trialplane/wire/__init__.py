"""What crosses a process boundary: names, paths, states and records. Standard library only, and no I/O but `paths`."""
