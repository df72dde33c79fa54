"""trialplane: a laptop's Optuna script as hundreds of isolated trials.

The rooms, from what the user asks to what a pod runs: `spec` (the job file), `plan` (what will be sent),
`client` and `cli` (the laptop), `controller` (asks Optuna, tells results), `runtime` (runs trials), with `wire` (what
crosses a process boundary) and `policies` (what must hold in a process) below them. Nothing is imported here, so that
`import trialplane` costs nothing.
"""

__version__ = "0.1.0"
