"""The Kubernetes client of laptop, operator and gateway.

`cluster` makes requests with the connections of a kubeconfig or of a pod, `objects` writes the objects of a run, `waiting`
explains why a pod does not run, `preflight` what a cluster cannot hold.
"""
