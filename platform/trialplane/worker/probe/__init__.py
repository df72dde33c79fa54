"""Checks from inside an image or a trial's pod what a trial relies on; `python -m trialplane.worker.probe` runs them.

`rules` looks at the four policies, `pod` at the process and its files, `network` at what can be reached, `devices` at
CUDA and collective communication. Each check gives a `wire.findings.Finding`; `platform doctor` shows them.
"""
