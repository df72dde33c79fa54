"""The laptop: submits runs to a target and reads them back. Imports no torch, ray, numpy, optuna or mlflow."""
