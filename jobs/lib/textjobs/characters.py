"""The preset `characters`: a BERT tokenizer whose vocabulary is the characters of the text at hand.

It splits as `bert-base-chinese` does: a Chinese character is a token; letters and digits are pieces of one character,
`##` before all but a word's first. Nothing is lower-cased. The same text gives the same vocabulary, byte for byte.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from trialplane import errors

NAME = "characters"
VOCABULARY = 21_128  # of bert-base-chinese
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# What BERT takes for a Chinese character, each a word of its own; kana and Hangul are not among them.
_CHINESE = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ceaf\U0002f800-\U0002fa1f"
_WORD = re.compile(rf"[^\W_{_CHINESE}]{{2,}}")


def vocabulary(corpus: Iterable[str], size: int = VOCABULARY) -> dict[str, int]:
    """Ids of the most frequent characters: the special tokens, then by frequency, equal ones by code point.

    Raises:
        InputError: the text holds no character.
    """
    counts: Counter[str] = Counter()
    for line in corpus:
        counts.update(line)
        for word in _WORD.findall(line):
            counts.update(f"##{char}" for char in word[1:])
    for char in [char for char in counts if char.isspace() or not char.isprintable()]:
        del counts[char]
    if not counts:
        raise errors.InputError(f"the tokenizer {NAME!r} found no characters in the text it was given; look at params.data")
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: size - len(SPECIAL)]
    return {token: number for number, token in enumerate([*SPECIAL, *(token for token, _ in most)])}


def write(corpus: Iterable[str], folder: Path) -> None:
    """Write the tokenizer of this text to `folder`, as `from_pretrained` reads it."""
    from transformers import BertTokenizer

    tokenizer = BertTokenizer(vocab=vocabulary(corpus), do_lower_case=False, strip_accents=False, model_max_length=512)
    tokenizer.save_pretrained(folder)
