"""From a job to the objects of its run: pure functions without network access."""
