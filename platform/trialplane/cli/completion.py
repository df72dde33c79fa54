"""`platform completion`: the script that makes a shell complete verbs, runs and jobs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print what makes SHELL complete `platform`.

    \b
    bash   eval "$(platform completion bash)"      in ~/.bashrc
    zsh    eval "$(platform completion zsh)"       in ~/.zshrc
    fish   platform completion fish | source       in ~/.config/fish/config.fish
    """  # noqa: D301  \b is click's mark
    from trialplane.cli.main import platform

    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"this version of click does not know {shell}")
    click.echo(made(platform, {}, "platform", "_PLATFORM_COMPLETE").source())
