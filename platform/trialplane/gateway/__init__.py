"""The gateway: laptops read runs through it, the controller of each run writes its own ledger, and runs reach MLflow.

`server` is its HTTP, `callers` who asks, `routes` what laptops ask for, `logs` where it has logs from, `ledgers` what
controllers do, and `mlflow` the door to MLflow's server (`upstream`) with `mlflow_calls`, what it lets through, and
`records`, whose a record is. `bodies` are those of requests and answers, `limits` counts what is under way.
"""
