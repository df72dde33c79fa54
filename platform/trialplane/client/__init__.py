"""Client of runs: submits them to a target and reads them back. Imports no torch, ray, numpy, optuna or mlflow.

public interface      sdk (`Platform`) and run (`RunHandle`), which use targets only through the port `target`
function as a job     functions, and source: the module that is written for it
following a run       events (for programs), live (for people)
choice of a target    target_choice: flags, environment, memory → this machine or a namespace
this machine          local, on machine (does a job fit), folder, process
a cluster             kubernetes, gateway (ledger and logs, with remote_log), sources (status of a run from Run and ledger),
                      pages (MLflow's)
apart from runs       doctor and doctor_*, images

The client of the API server is in `kube`, the reader of a local ledger in `ledger.results`.
"""
