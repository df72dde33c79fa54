"""The preset `characters`: a BERT tokenizer whose vocabulary is the characters of the job's text.

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

# Characters that BERT treats as Chinese, each as a word of its own. Kana and Hangul are not among them.
_CHINESE = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ceaf\U0002f800-\U0002fa1f"
_WORD = re.compile(rf"[^\W_{_CHINESE}]{{2,}}")


def vocabulary(corpus: Iterable[str], size: int = VOCABULARY) -> dict[str, int]:
    """Return the ids of the special tokens and of the most frequent characters, equally frequent ones by code point.

    Raises:
        InputError: The text has no characters.
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
    ranked_tokens = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: size - len(SPECIAL)]
    return {token: number for number, token in enumerate([*SPECIAL, *(token for token, _ in ranked_tokens)])}


def write(corpus: Iterable[str], folder: Path) -> None:
    """Write a tokenizer of this text to a folder, for `from_pretrained`."""
    from transformers import BertTokenizer

    tokenizer = BertTokenizer(vocab=vocabulary(corpus), do_lower_case=False, strip_accents=False, model_max_length=512)
    tokenizer.save_pretrained(folder)
