"""Optuna's exception, as a script brought along raises it; trials do not have Optuna."""


class TrialPruned(Exception): ...


TrialPruned.__module__ = "optuna.exceptions"
