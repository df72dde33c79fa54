"""Checks of the environment of trials, inside an image or a pod; `python -m trialplane.worker.probe` runs them.

`pod` checks the four policies, the process and its files, and network access, `devices` CUDA and collective communication.
Each check returns a `wire.findings.Finding`; `platform doctor` shows them.
"""
