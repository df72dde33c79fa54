"""Recognizes passwords, keys and tokens by their names, and removes them from command lines. Pure.

Everyone who may see a run sees its job, its parameters and the command that submitted it. So none of these may contain a
secret.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Words that mark a secret if they are the last word of a name.
_SECRETS = ("pwd", "secret", "secrets", "credential", "credentials", "apikey")
_PASSWORDS = ("password", "passwd", "passphrase")  # also at the end of a word, as in PGPASSWORD
_SERVICES = (
    *("hf", "hub", "huggingface", "wandb", "openai", "anthropic", "comet", "neptune", "kaggle", "github", "gh", "gitlab"),
    *("mlflow", "aws", "azure", "google", "slack", "ngc", "bot", "telegram", "replicate", "clearml"),
)
# Last word of a name → words of which one makes it a secret: `--db-pass`, but not `--second-pass`; `--api-key`, but not
# `--label-key`; `--hub-token`, but not `--placeholder-token "<cat>"`, a part of a text.
_QUALIFIERS = {
    "pass": frozenset(
        (
            *("db", "database", "pg", "postgres", "mysql", "mongo", "redis", "user", "admin", "root", "login", "auth"),
            *("broker", "mail", "email", "smtp", "ftp", "ssh", "http"),
        )
    ),
    "key": frozenset(
        (
            *("api", "access", "secret", "private", "account", "auth", "signing", "encryption", "license"),
            *_SERVICES,
        )
    ),
    "token": frozenset(
        (
            *("api", "access", "auth", "bearer", "refresh", "session", "secret", "private", "personal", "id"),
            *_SERVICES,
        )
    ),
}
# Variables that a shell sets by itself, which can stand for no secret.
_SHELL_VARIABLES = frozenset({"PWD", "OLDPWD", "HOME", "PATH", "USER", "UID", "SHELL", "RANDOM"})
_INHERITED = re.compile(r'^(?:(\w+)="\$\1"\s+)+')  # NAME="$NAME" before a command, which inherits the variable anyway
_NUMBER_OR_SWITCH = re.compile(r"[-+]?[.\d]+(?:e[-+]?\d+)?|true|false|none|null|yes|no|on|off", re.IGNORECASE)
_REFERENCE = re.compile(r"\$.*|\{[^{}]*\}")  # $TOKEN of a shell, {token} of a job
_PASSWORD_IN_URL = re.compile(r"""(?<=://)([^/?#\s:@]*:)(?!["']*\$)[^/?#\s@]+(?=@)""")
_SCHEME = re.compile(r"([A-Za-z]\w*)(?:\+\w+)?://$")
# API_KEY=x, --api-key=x, --api-key x and logger.api_key=x of a command line.
_VALUE = re.compile(
    r"""(?<![^\s"'(;&|])(?:--?(?P<flag>[A-Za-z][\w.-]*)(?:=|[ \t]+(?!-))|\+{0,2}(?P<key>[A-Za-z_][\w./]*)=)"""
    r"""(?P<value>(?:'[^']*'|"[^"]*"|[^\s;|&'"]+)+)"""
)
# "api_key": "x" of JSON in a command line, {api_key: x} of Hydra.
_ITEM = re.compile(
    r"""(?:[{,]\s*|\\?["'])(?P<name>[A-Za-z_][\w.-]*)(?:\\?["'])?\s*:\s*(?!(?:\\?["'])*\$)"""
    r"""(?:(?P<quote>\\?["'])(?P<quoted>.+?)(?P=quote)|(?P<value>[^\s"',{}\[\]\\]+))"""
)
# "api_key": "x" of JSON, api_key: x of YAML.
_FIELD = re.compile(r"""["']?(?P<name>[A-Za-z_][\w.-]*)["']?\s*:\s*["']?(?P<value>[^\s"',}]+)""")
# Names of files. Of the hidden ones, more have secrets: `.kaggle`, `.api_token`.
_FILE = re.compile(
    r"id_(?:rsa|dsa|ecdsa|ed25519)(?!.*\.pub$).*|.+\.(?:env|pem|key|p12|pfx)|(?:kaggle|credentials)\.json|"
    r"\.(?:(?:env|netrc|pypirc|npmrc|pgpass|s3cfg|boto|kaggle|huggingface).*|.*(?:token|secret|credential|passw|key|\.pem).*)",
    re.IGNORECASE | re.DOTALL,
)


class _Secret(NamedTuple):
    """A secret in a command line.

    Attributes:
        span: Its position; with its quotation marks, unless it is a part of a word.
        name: Its name.
        value: The secret itself.
        is_part: Whether it is a part of a word, as in JSON or a URL.
    """

    span: tuple[int, int]
    name: str
    value: str
    is_part: bool


def is_secret(name: str, value: Any) -> bool:
    """Whether a value is a password, a key or a token, according to its name, or is a URL with a password.

    Args:
        name: Name of a parameter, an option or a variable: `hf-token`, `logger.wandb.api_key`, `AWS_SECRET_ACCESS_KEY`.
        value: The value. It is not a secret if it is not a text, is empty, or is a reference such as `$TOKEN`.
    """
    if not isinstance(value, str) or not value or _REFERENCE.fullmatch(value):
        return False
    last_part = re.split(r"[./]", name)[-1]
    if last_part in _SHELL_VARIABLES:
        return False
    words = [word.lower() for word in _WORDS.findall(last_part)] or [""]  # api and key of api_key, apiKey and API_KEY
    last_word = words[-1]
    if last_word in _SECRETS or last_word.endswith(_PASSWORDS) or _PASSWORD_IN_URL.search(value):
        return True
    if _NUMBER_OR_SWITCH.fullmatch(value):  # a setting, such as --max-token 128
        return False
    has_qualifier = not _QUALIFIERS.get(last_word, frozenset()).isdisjoint(words)
    if last_word == "key":
        is_variable = last_part.isupper() and len(words) > 1  # WANDB_KEY
        return has_qualifier or is_variable
    return has_qualifier or words in (["pass"], ["token"])


def extract(command: str, removed: Mapping[str, str] = MappingProxyType({})) -> tuple[str, dict[str, str]]:
    """Return a command line with variables of the shell in place of its secrets: `--api-key "$API_KEY"` for `--api-key x`.

    An assignment `API_KEY=x` at its beginning is removed, because the command inherits the variable.

    Args:
        command: Command line as a user types it.
        removed: Values of variables for secrets that the command has no longer, see `reference`.

    Returns:
        The command line without secrets, and the value of each environment variable that it needs instead.
    """
    variables = dict(removed)
    without_secrets, end = "", 0  # the new command line, as far as it stands for `command[:end]`
    for secret in sorted(_secrets_in(command)):
        start, stop = secret.span
        if start < end:  # inside the secret before
            continue
        quote = open_quote(command[:start]) if secret.is_part else ""
        variable = reference(secret.name, secret.value, variables, quote, following=command[stop : stop + 1])
        without_secrets += command[end:start] + variable
        end = stop
    if not variables:
        return command, {}
    return _INHERITED.sub("", without_secrets + command[end:]), variables


def upload_notes(text: str, in_command: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """Yield a remark on each secret in the text of a file, which is uploaded with the job.

    Args:
        text: The text.
        in_command: Secrets of the command that is made of it, by the environment variable from which it reads each one.
    """
    _, in_text = extract(text)
    name_by_secret = {secret: name for name, secret in in_text.items()}
    variable_by_secret = name_by_secret | {secret: variable for variable, secret in in_command.items()}
    for secret, variable in variable_by_secret.items():
        name = name_by_secret.get(secret, variable)
        yield (
            f"sets {name}, which looks like a secret, and the file is uploaded with the job: remove it there, and type "
            f"`export {variable}=…` before `platform submit`"
        )


def reference(name: str, value: str, variables: dict[str, str], quote: str = "", following: str = "") -> str:
    """Return the text of the shell that stands for a secret, `"$API_KEY"`, and add its variable to `variables`.

    Args:
        name: Name of the secret.
        value: The secret.
        variables: Values of variables for secrets.
        quote: The quotation mark that is open before it, see `open_quote`.
        following: The character behind it; "" at the end.
    """
    variable = _variable(name, value, variables)
    variables[variable] = value
    extends_name = re.match(r"\w", following)  # $API_KEYx would be another variable
    if quote == '"' and not extends_name:
        return f"${variable}"
    # Close the open quotation mark before the variable, and open it again: a shell replaces no variable in single quotes.
    return f'{quote}"${variable}"{quote}'


def _secrets_in(command: str) -> Iterator[_Secret]:
    """Yield the secrets in a command line. One may contain another."""
    for match in _VALUE.finditer(command):
        name, value = match["flag"] or match["key"], re.sub(r"""['"]""", "", match["value"])
        if is_secret(name, value):
            yield _Secret(match.span("value"), name, value, is_part=False)
    for match in _ITEM.finditer(command):
        group = "quoted" if match["quote"] else "value"
        if is_secret(match["name"], match[group]):
            yield _Secret(match.span(group), name=match["name"], value=match[group], is_part=True)
    for match in _PASSWORD_IN_URL.finditer(command):
        scheme = _SCHEME.search(command[: match.start()])
        name = f"{scheme[1] if scheme else 'url'}_password"
        start, stop = match.end(1), match.end()
        yield _Secret(span=(start, stop), name=name, value=command[start:stop], is_part=True)


def open_quote(text: str, quote: str = "") -> str:
    """Return the quotation mark that is open at the end of a part of a command line; "" if none is.

    Args:
        text: The part.
        quote: The quotation mark that is open at its beginning; "" if none is.
    """
    characters = iter(text)
    for character in characters:
        if character == "\\" and quote != "'":
            next(characters, "")  # skip the character after the backslash
        elif character in ("'", '"') and quote in ("", character):
            quote = "" if quote else character
    return quote


def has_secret(text: str) -> bool:
    """Return whether a text has a secret, as an assignment, an option of a command, or a value of JSON or YAML."""
    return bool(extract(text)[1]) or any(is_secret(match["name"], match["value"]) for match in _FIELD.finditer(text))


def is_secret_file(path: str) -> bool:
    """Return whether a file may have secrets, by its name."""
    return bool(_FILE.fullmatch(path.rpartition("/")[2]))


def _variable(name: str, value: str, variables: Mapping[str, str]) -> str:
    """Return the environment variable for a secret: API_KEY, LOGGER_API_KEY or LOGGER_API_KEY_2 for `logger.api-key`.

    It is the first of these that is free or has the same secret.

    Args:
        name: Name of the secret.
        value: The secret.
        variables: Values of variables for other secrets.
    """
    short = re.sub(r"\W", "_", re.split(r"[./]", name)[-1]).upper()
    full = re.sub(r"\W", "_", name).upper()
    numbered = (f"{full}_{number}" for number in itertools.count(2))
    candidates = itertools.chain([f"SECRET_{short}" if short in _SHELL_VARIABLES else short, full], numbered)
    return next(candidate for candidate in candidates if variables.get(candidate, value) == value)


def _masked_item(match: re.Match[str]) -> str:
    """Return an item of JSON with `***` in place of a secret: `{"api_key": "***"` for a match of `{"api_key": "x"`."""
    group = "quoted" if match["quote"] else "value"
    if not is_secret(match["name"], match[group]):
        return match[0]
    start, stop = match.start(group) - match.start(), match.end(group) - match.start()
    return f"{match[0][:start]}***{match[0][stop:]}"


def mask(words: Sequence[str]) -> list[str]:
    """Return the words of a command with `***` in place of secrets: `--param api_key=***`, `--api-key ***`."""
    shown: list[str] = []
    for word in words:
        word = _ITEM.sub(_masked_item, word)
        if re.search(r"\s", word):  # a command line for a shell
            command_line, _ = extract(word)
            shown.append(_PASSWORD_IN_URL.sub(r"\1***", command_line))
            continue
        previous = shown[-1] if shown else ""
        is_option_before = previous.startswith("-") and "=" not in previous
        secret_start = _assigned_secret_start(word)
        if secret_start is not None and "://" not in word:  # of a URL, only the password is masked, below
            shown.append(f"{word[:secret_start]}***")
        elif is_option_before and is_secret(previous.lstrip("-"), word):
            shown.append("***")
        else:
            shown.append(_PASSWORD_IN_URL.sub(r"\1***", word))
    return shown


def _assigned_secret_start(word: str) -> int | None:
    """Return the index at which a secret starts in a word such as `--api-key=x`; None if there is none.

    A word may have several "=" with a name before each. In `--set=params.api_key=x`, the second one is a secret's.
    """
    for match in re.finditer("=", word):
        name = word[: match.start()].rpartition("=")[2].lstrip("-")
        if is_secret(name, word[match.end() :]):
            return match.end()
    return None
