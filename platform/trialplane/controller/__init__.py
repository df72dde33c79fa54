"""The controller of a run: takes attempts from the ledger, runs them in slots, and records each result once."""
