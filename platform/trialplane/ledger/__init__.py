"""Database of runs: all uses of SQLAlchemy and all SQL.

- `tables`: tables, their creation, connections to PostgreSQL
- `attempts`: SELECTs of attempts and reports, without SQLAlchemy, because a laptop reads with them too
- `storages`: protocols of one run in a database, and the choice of a database by its URL
- `study`: one run in a SQL database, for its controller and its exporter
- `remote`: one run behind the gateway, for its controller and its exporter
- `served`: one run, written by the gateway for its controller
- `archive`: all runs of a namespace, for the gateway and the operator
- `namespaces`: the archives of all namespaces
- `results`: one run, read on a laptop
- `run_status`: status of a run, from its row and the operator's view
- `budget`: limits on the bytes of a namespace
- `locking`: one controller per run
"""
