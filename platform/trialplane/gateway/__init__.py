"""The gateway: laptops read runs through it, controllers write their ledgers through it, and runs use MLflow through it.

`server` is the HTTP server, `routes` the table of all routes and the answers to laptops. `callers` authenticates users,
`logs` reads logs, `ledgers` answers controllers, and `mlflow` is the proxy of MLflow's server (`upstream`) for the paths in
`mlflow_paths`. `limits` limits concurrent requests and connections.
"""
