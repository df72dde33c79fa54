"""Token caches: `tokens.tokenized` creates or finds one, and `tokens.TokenDataset` reads it."""

# `dataset` is the public part, `shards` the files, and `worker` makes them in a process of its own. Importing this imports
# nothing until one of its names is used: that process comes through here, and must start quickly.

import importlib
from typing import TYPE_CHECKING

__all__ = ["TokenDataset", "tokenized"]

if TYPE_CHECKING:
    from trialplane.training.tokens.dataset import TokenDataset, tokenized
else:

    def __getattr__(name: str) -> object:
        if name in __all__:
            return getattr(importlib.import_module(f"{__name__}.dataset"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
