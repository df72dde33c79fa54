"""What runs in the head: takes attempts from the ledger, runs them in slots, and records each result once."""
