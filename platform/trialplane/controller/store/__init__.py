"""The database of runs: all SQLAlchemy and SQL except the SELECTs in `wire.attempts`, which the laptop shares.

`tables` creates the tables, `study` is one run as its controller writes it, `archive` all runs as the gateway serves them,
`former` converts runs of an earlier version, `locking` ensures one controller per run.
"""
