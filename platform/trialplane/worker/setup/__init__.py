"""Before the first trial: install what a job requires, and ask its program for its arguments."""
