"""Secrets in command lines: which names and values are recognized, and the text without them."""

from __future__ import annotations

import pytest

from trialplane.job import credentials


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("API_KEY", "a1b2"),
        ("api-key", "a1b2"),
        ("apiKey", "a1b2"),
        ("WANDB_KEY", "a1b2"),
        ("logger.wandb.api_key", "a1b2"),
        ("hf-token", "a1b2"),
        ("AWS_SECRET_ACCESS_KEY", "a1b2"),
        ("db.password", "1234"),
        ("db", "postgresql://user:pass@host/db"),
        ("PGPASSWORD", "a1b2"),
        ("DB_PASS", "a1b2"),
        ("db-pass", "a1b2"),
        ("MYSQL_PWD", "a1b2"),
    ],
)
def test_secrets_are_recognized(name: str, value: str) -> None:
    assert credentials.is_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("label-key", "label"),
        ("PWD", "/home/me"),
        ("second-pass", "fast"),
        ("pass", "2"),
        ("bypass", "proxy"),
        ("key", "label"),
        ("pad_token", "<pad>"),
        ("placeholder-token", "<cat>"),
        ("initializer_token", "toy"),
        ("max-tokens", "100"),
        ("token", "100"),
        ("use_token", "true"),
        ("tokenizer", "bert"),
        ("num_key_value_heads", "4"),
        ("api_key", ""),
        ("api_key", "$API_KEY"),
        ("api_key", "{api_key}"),
        ("password", None),
        ("url", "https://host:80/path"),
        ("lr", "0.1"),
    ],
)
def test_other_values_are_no_secrets(name: str, value: str | None) -> None:
    assert not credentials.is_secret(name, value)


@pytest.mark.parametrize(
    ("command", "without", "variables"),
    [
        ("API_KEY=x1 python fit.py --lr 0.1", "python fit.py --lr 0.1", {"API_KEY": "x1"}),
        ("A=1 API_KEY='x 1' fit", 'A=1 API_KEY="$API_KEY" fit', {"API_KEY": "x 1"}),
        ("fit --api-key x1 --lr 0.1", 'fit --api-key "$API_KEY" --lr 0.1', {"API_KEY": "x1"}),
        ("fit --api-key=x1", 'fit --api-key="$API_KEY"', {"API_KEY": "x1"}),
        ("fit +log.api_key=x1 lr=0.1", 'fit +log.api_key="$API_KEY" lr=0.1', {"API_KEY": "x1"}),
        ("fit --pwd x1", 'fit --pwd "$SECRET_PWD"', {"SECRET_PWD": "x1"}),
        ("fit a.token=x1 b.token=x2", 'fit a.token="$TOKEN" b.token="$B_TOKEN"', {"TOKEN": "x1", "B_TOKEN": "x2"}),
        ("fit --db http://u:p@h/d", 'fit --db "$DB"', {"DB": "http://u:p@h/d"}),
        ("PGPASSWORD=x1 DB_PASS=x2 fit", "fit", {"PGPASSWORD": "x1", "DB_PASS": "x2"}),
        (
            "fit a://u:p1@h a://u:p2@h",
            'fit a://u:"$A_PASSWORD"@h a://u:"$A_PASSWORD_2"@h',
            {"A_PASSWORD": "p1", "A_PASSWORD_2": "p2"},
        ),
        ("fit 'db+x://u:p1@h'", "fit 'db+x://u:'\"$DB_PASSWORD\"'@h'", {"DB_PASSWORD": "p1"}),
        ("""fit -c '{"api_key": "x 1"}'""", """fit -c '{"api_key": "'"$API_KEY"'"}'""", {"API_KEY": "x 1"}),
        (r"""fit -c "{\"token\": \"x1\"}" """, r"""fit -c "{\"token\": \"$TOKEN\"}" """, {"TOKEN": "x1"}),
        ("fit 'log={token: x1, n: 3}'", "fit 'log={token: '\"$TOKEN\"', n: 3}'", {"TOKEN": "x1"}),
        ("""fit '{"token": "$TOKEN", "n": {"lr": 1}}'""", """fit '{"token": "$TOKEN", "n": {"lr": 1}}'""", {}),
        ("export HF_TOKEN=x1; fit", 'export HF_TOKEN="$HF_TOKEN"; fit', {"HF_TOKEN": "x1"}),
        ('API_KEY="$API_KEY" fit --use-token --lr 0.1', 'API_KEY="$API_KEY" fit --use-token --lr 0.1', {}),
    ],
)
def test_secrets_of_a_command_line_become_variables(command: str, without: str, variables: dict[str, str]) -> None:
    assert credentials.extract(command) == (without, variables)
    assert credentials.extract(without) == (without, {})


def test_a_recorded_command_has_no_secrets() -> None:
    words = [
        "fit",
        "--param",
        "api_key=x1==",
        "--set=params.hf_token=x1",
        "--password",
        "x1",
        "--param",
        "lr=0.1",
        "a://u:p@h",
    ]
    words += ["API_KEY=x1 fit --lr 0.1", '{"token":"x1","n":3}']
    masked = ["fit", "--param", "api_key=***", "--set=params.hf_token=***", "--password", "***", "--param", "lr=0.1"]
    assert credentials.mask(words) == [*masked, "a://u:***@h", "fit --lr 0.1", '{"token":"***","n":3}']


def test_files_with_secrets_are_recognized_by_their_names() -> None:
    secret = (
        ".env",
        ".env.local",
        ".netrc",
        ".config/.kaggle",
        ".my_api_token.txt",
        "prod.env",
        "keys/id_rsa",
        "keys/id_ed25519",
        "kaggle.json",
        "keys/OWN.PEM",
    )
    other = (".vocabulary.txt", "tokens.txt", "key.py", "environment.yaml", "pem/a.txt", "id_rsa.pub", "keyboard.csv")
    assert [name for name in (*secret, *other) if credentials.is_secret_file(name)] == list(secret)
