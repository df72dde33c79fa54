"""Checks from inside an image or a trial's pod what a trial relies on; `python -m trialplane.worker.probe` runs them.

`pod` looks at the four policies, the process and its files, and what can be reached, `devices` at CUDA and collective
communication. Each check gives a `wire.findings.Finding`; `platform doctor` shows them.
"""
