"""The exporter: updates MLflow from the ledger of a run, in a separate process.

`source` reads the ledger, `projection` defines the entries of a run and its attempts in MLflow, `exporter` writes those that
MLflow lacks, `batch` has the form that MLflow accepts, `files` uploads files of the run's folder, and `adoption` copies the
entries that a trial logged while MLflow did not answer.
"""
