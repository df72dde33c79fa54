"""Callbacks by which a training library reports to its trial: one file for each library, which a job imports.

    from trialplane.integrations import huggingface

    trainer = Trainer(..., callbacks=[huggingface.TrialCallback()])

| module | what it has |
|---|---|
| `huggingface` | `TrialCallback` for transformers' Trainer, `output_dir`, `resume_from` |
| `lightning` | `TrialCallback` for Lightning's Trainer, `resume_from` |
| `accelerate` | `TrialTracker` for `Accelerator(log_with=…)`, `save`, `stop`, `resume` |
| `keras` | `TrialCallback` for Keras 3, which resumes by itself |
| `xgboost`, `lightgbm` | `TrialCallback`, with the `model` to go on from and the `rounds` that are left |
| `catboost` | `TrialCallback`, and `snapshot`, by which CatBoost resumes by itself |
| `sklearn` | `fit_epochs`, a loop around `partial_fit` |

Each reports under the step at which the library is: optimizer steps, epochs or rounds *done*. In a pruned trial the call
that trains raises what `ctx.report` raises: let it pass. When a stop was requested, each saves what the library can save,
and ends the attempt; the next one goes on from there. Outside of a trial nothing is reported or saved.
"""
