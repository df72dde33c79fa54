"""The database of runs: SQLAlchemy, and all SQL but the SELECTs that `wire.attempts` shares with the laptop, are in here.

`tables` makes the tables, `study` is one run that a controller writes, `archive` all runs as the gateway sees them, `former`
takes over what an earlier version wrote, `locking` keeps controllers apart.
"""
