"""Recognition of passwords, keys and tokens by their names, and command lines without them. Pure.

Everyone who may see a run sees its job, its parameters and the command that submitted it. None of these may have a secret.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Last words of a name that mean a secret, whatever stands before them.
_SECRETS = ("password", "passwd", "passphrase", "pwd", "secret", "secrets", "credential", "credentials", "apikey")
# Words of a name that make the key at its end a secret: `--api-key`, and not `--label-key`.
_KINDS_OF_KEYS = ("api", "access", "secret", "private", "account", "auth", "signing", "encryption", "license")
_SERVICES = ("hf", "wandb", "openai", "anthropic", "comet", "neptune", "kaggle")  # whose keys are secrets, too
# Words of a name that make the token at its end a part of a text: `--pad-token "<pad>"`.
_KINDS_OF_TEXT = ("pad", "mask", "eos", "bos", "unk", "sep", "cls", "special", "start", "end", "image", "stop", "oov")
_INHERITED = re.compile(r'^(?:(\w+)="\$\1"\s+)+')  # a program inherits the variable in any case
_NUMBER_OR_SWITCH = re.compile(r"[-+]?[.\d]+(?:e[-+]?\d+)?|true|false|none|null|yes|no|on|off", re.IGNORECASE)
_REFERENCE = re.compile(r"\$.*|\{[^{}]*\}")  # $TOKEN of a shell, {token} of a job
_PASSWORD_IN_URL = re.compile(r"(?<=://)([^/?#\s:@]*:)(?!\$)[^/?#\s@]+(?=@)")
# API_KEY=x, --api-key=x, --api-key x and logger.api_key=x of a command line.
_VALUE = re.compile(
    r"""(?<![^\s"'(;&|])(?:--?(?P<flag>[A-Za-z][\w.-]*)(?:=|[ \t]+(?!-))|\+{0,2}(?P<key>[A-Za-z_][\w./]*)=)"""
    r"""(?P<value>(?:'[^']*'|"[^"]*"|[^\s;|&'"]+)+)"""
)


def is_secret(name: str, value: Any) -> bool:
    """Return whether a value is a password, a key or a token, by its name, or is a URL with a password.

    Args:
        name: Name of a parameter, an option or a variable: `hf-token`, `logger.wandb.api_key`, `AWS_SECRET_ACCESS_KEY`.
        value: The value. What is not a text, an empty text and a reference such as `$TOKEN` are not secrets.
    """
    if not isinstance(value, str) or not value or _REFERENCE.fullmatch(value):
        return False
    last_part = re.split(r"[./]", name)[-1]
    words = [word.lower() for word in _WORDS.findall(last_part)] or [""]
    if words[-1] in _SECRETS or _PASSWORD_IN_URL.search(value):
        return True
    if _NUMBER_OR_SWITCH.fullmatch(value):
        return False
    if words[-1] == "token":
        return not set(_KINDS_OF_TEXT) & set(words)
    is_variable = last_part.isupper() and len(words) > 1  # WANDB_KEY
    return words[-1] == "key" and (is_variable or bool({*_KINDS_OF_KEYS, *_SERVICES} & set(words)))


def extract(command: str) -> tuple[str, dict[str, str]]:
    """Replace the secrets in a command line by variables of the shell: `--api-key x` by `--api-key "$API_KEY"`.

    An assignment `API_KEY=x` at its beginning is removed.

    Args:
        command: Command line as a user types it.

    Returns:
        The command line without secrets, and the value of each environment variable that it needs instead.
    """
    variables: dict[str, str] = {}
    pieces, end = [], 0
    for match in _VALUE.finditer(command):
        name = match["flag"] or match["key"]
        value = re.sub(r"""['"]""", "", match["value"])
        if is_secret(name, value):
            variable = re.sub(r"\W", "_", re.split(r"[./]", name)[-1]).upper()
            pieces += [command[end : match.start("value")], f'"${variable}"']
            end = match.end()
            variables[variable] = value
    return (_INHERITED.sub("", "".join([*pieces, command[end:]])), variables) if variables else (command, {})


def masked(words: Sequence[str]) -> list[str]:
    """Return the words of a command with `***` in place of secrets: `--param api_key=***`, `--api-key ***`."""
    shown: list[str] = []
    for word in words:
        if re.search(r"\s", word):  # a command line for a shell
            shown.append(extract(word)[0])
            continue
        previous = shown[-1] if shown else ""
        equals = [index for index, character in enumerate(word) if character == "="]
        # The name before each "=": of `--set=params.api_key=x`, the second one is that of the secret.
        ends = [end for end in equals if is_secret(word[:end].rpartition("=")[2].lstrip("-"), word[end + 1 :])]
        if ends and "://" not in word:
            shown.append(f"{word[: ends[0]]}=***")
        elif previous.startswith("-") and "=" not in previous and is_secret(previous.lstrip("-"), word):
            shown.append("***")
        else:
            shown.append(_PASSWORD_IN_URL.sub(r"\1***", word))
    return shown
