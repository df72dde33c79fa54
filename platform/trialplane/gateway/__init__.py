"""The gateway: laptops read runs through it, the controller of each run writes its own ledger, and runs reach MLflow.

`server` is its HTTP, `routes` the table of all that it answers, with what laptops ask for, `callers` who asks, `logs` where
it has logs from, `ledgers` what controllers do, and `mlflow` the door to MLflow's server (`upstream`) with `mlflow_paths`,
what passes. `limits` counts what is under way.
"""
