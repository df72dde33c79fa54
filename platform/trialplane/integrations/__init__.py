"""Callbacks that connect training libraries to the trial, in one module per library.

    from trialplane.integrations import huggingface

    trainer = Trainer(..., callbacks=[huggingface.TrialCallback()])

| module | contents |
|---|---|
| `huggingface` | `TrialCallback` for transformers' Trainer, `output_dir`, `resume_from` |
| `lightning` | `TrialCallback` for Lightning's Trainer, `resume_from` |
| `accelerate` | `TrialTracker` for `Accelerator(log_with=…)`, `save`, `stop`, `resume` |
| `keras` | `TrialCallback` for Keras 3, which also resumes |
| `xgboost`, `lightgbm` | `TrialCallback`, with the `model` to continue from and the remaining `rounds` |
| `catboost` | `TrialCallback`, with `snapshot` for CatBoost to resume |
| `sklearn` | `fit_epochs`, a loop around `partial_fit` |
| `searches` | `objective_of`, the objective of the search that a script starts, by Optuna or another library |

Metrics are reported with the number of optimizer steps, epochs or rounds that are done. In a pruned trial, the call that
trains raises `Pruned`: do not catch it. If a stop is requested, the callback saves a checkpoint and ends the attempt. The
next attempt continues from it. Outside of a trial, nothing is reported or saved.
"""
