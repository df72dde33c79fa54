"""Parameters in place of parts of a command.

Not checked here: how commands are read (tests/cli/test_programs.py).
"""

from __future__ import annotations

import pytest

from trialplane.importing import placeholders, shell
from trialplane.wire.declared import Option


@pytest.mark.parametrize("command", ["python train.py -q", "python train.py -q | tee log"])
def test_parameters_that_a_command_lacks_are_appended_in_the_order_of_their_positions(command: str) -> None:
    script = placeholders.parse(command, call=shell.find_call(command))
    with_parameters = placeholders.with_positions(script, {2: Option("depth"), 0: Option("quiet"), 1: Option("lr")})
    assert "python train.py {quiet} {lr} {depth}" in " ".join(with_parameters.command)
