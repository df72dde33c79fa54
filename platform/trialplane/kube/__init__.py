"""The Kubernetes client of laptop, operator and gateway.

`cluster` sends requests with the credentials of a kubeconfig or of a pod, and `objects` writes the objects of a run.
`waiting` explains why a pod does not run, and `preflight` why a run does not fit a cluster.
"""
