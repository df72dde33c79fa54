"""The operator: reconciles each Run with its spec, and writes its status.

`observation` has the snapshot of a Run, `decisions` its next actions and `run_status` its status; all three are pure.
`observing` reads the objects, `reconciler` does the actions, and `removal` deletes the files and the record of a run.
"""
