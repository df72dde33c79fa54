"""Loading of a tokenizer from a folder or the hub, with a remedy if protobuf is the cause of a failure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trialplane import errors
from trialplane.policies import protobuf

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load(source: str | Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer from its own files, through protobuf for SentencePiece models.

    Raises:
        InputError: There is no such tokenizer, or it cannot be reached.
        PolicyError: protobuf cannot load SentencePiece's messages in this process.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, ImportError) as error:
        _check_protobuf(source)
        raise errors.InputError(
            f"the tokenizer {str(source)!r} could not be loaded: {errors.first_line(error)}; give a local folder or a hub "
            f"name that this machine reaches or has downloaded (HF_HOME)"
        ) from error


def _check_protobuf(source: str | Path) -> None:
    """Raise PolicyError if this process cannot read SentencePiece models at all.

    transformers reports that failure as a wrong file format: "`tiktoken` is required".
    """
    from transformers.convert_slow_tokenizer import import_protobuf

    try:
        import_protobuf()
    except (TypeError, KeyError) as error:
        raise errors.PolicyError(
            f"the tokenizer {str(source)!r} could not be converted: protobuf reports {errors.first_line(error)!r}, because "
            f"two copies of SentencePiece's messages were imported into this process; set {protobuf.VARIABLE}="
            f"{protobuf.ENV[protobuf.VARIABLE]} before Python starts (trialplane's images and slots do)"
        ) from error
    except ImportError:  # no protobuf or no SentencePiece: the caller reports it
        return


def quiet() -> None:
    """Turn off transformers' progress bars and loading reports, to keep them out of the trials' logs. Errors stay."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
