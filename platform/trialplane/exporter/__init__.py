"""The exporter: brings MLflow up to date with what the ledger holds of a run, in a process of its own.

`source` reads the ledger, `projection` is what MLflow shows of a run and its attempts, `exporter` compares and writes,
`batch` is the form MLflow accepts, `files` uploads what a run's folder has beside the ledger, `adoption` copies what a trial
logged while MLflow was away.
"""
