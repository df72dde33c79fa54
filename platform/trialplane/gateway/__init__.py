"""The gateway: laptops read runs through it, the controller of each run writes its own ledger, and runs reach MLflow.

`server` is its HTTP, `routes` the table of all routes, with the requests of laptops, `callers` authenticates users, `logs`
reads logs, `ledgers` serves controllers, and `mlflow` is the proxy of MLflow's server (`upstream`), for the paths in
`mlflow_paths`. `limits` counts requests and connections under way.
"""
