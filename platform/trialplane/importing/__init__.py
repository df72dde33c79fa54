"""Job files from the search files of others: text in, a job and a list of what it does not hold out."""
