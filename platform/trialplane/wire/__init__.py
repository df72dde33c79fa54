"""Names, paths, states and records that cross process boundaries. Standard library only, and no I/O but `paths`."""
