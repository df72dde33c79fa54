"""The field `notify`: URLs that apprise knows, and secrets by name."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from trialplane.job.notify import Notify


@pytest.mark.parametrize("url", ["json://127.0.0.1:9/hook", "ntfy://topic", "secret:SLACK", "secret:slack.url-1"])
def test_services_and_secrets_are_accepted(url: str) -> None:
    assert Notify(url=url).on == ("ended", "stuck")


def test_only_a_reference_is_a_secret() -> None:
    assert Notify(url="secret:SLACK").secret == "SLACK"
    assert Notify(url="ntfy://topic").secret is None


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://example.org/hook", "is no URL of apprise (https:…); for a webhook write json://HOST/PATH"),
        ("nonsense", "is no URL of apprise; for a webhook"),
        ("secret:a/b", "must name a secret by letters, digits, `.`, `_` and `-`"),
        ("secret:../token", "must name a secret"),
        ("secret:", "must name a secret"),
        ("", "at least 1 character"),
    ],
)
def test_other_urls_are_refused_without_a_password_in_the_message(url: str, text: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Notify(url=url)
    assert text in str(raised.value)


def test_occasions_are_known() -> None:
    with pytest.raises(ValidationError, match="'ended', 'failed', 'best' or 'stuck'"):
        Notify.model_validate({"url": "ntfy://topic", "on": ["won"]})
