"""The exporter: updates MLflow from the ledger of a run, in a separate process.

`source` reads the ledger. `projection` defines what MLflow shows of a run and its attempts. `exporter` writes the part of
it that MLflow lacks, and `batch` gives it the form that MLflow accepts. `files` uploads files of the run's folder.
`adoption` copies the entries that a trial logged while MLflow did not answer. `registration` is a program of its own, for
the model registry.
"""
