"""The laptop: submits runs to a target and reads them back. Imports no torch, ray, numpy, optuna or mlflow.

what a user holds     sdk (`Platform`) and run (`RunHandle`, and a run's life), which know of a place only the port: target
a function as a job   functions, and source: the module that is written for it
who watches a run     events (for programs), live (for people)
which place           places: flags, environment, memory → this machine or a namespace
this machine          local, on machine (does a job fit), folder, process, results (its ledger)
a cluster             kubernetes, from two sources:
                        objects  the API server: Runs with their code, pods
                        gateway  the ledger and the logs (remote_log), through the API server
                      standing makes one status of both
how to reach one      kubeconfig → cluster (objects of the kinds in its table), pages (MLflow's),
                      refusal (explains what it refuses)
                      preflight: does a job fit; offline: the same as far as a chart's values say it, without a cluster
                      phases and waiting explain to the operator why pods do not run
both places           changes (what a resubmission or `resume` may change, why nothing is left to do)
apart from runs       doctor and doctor_*, images
"""
