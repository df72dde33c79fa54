"""A trial of several processes: `supervisor` starts and ends them, `rank` is one, `verdict` makes one outcome of theirs.

`starting` and `stragglers` are the supervisor's; a slot holds the ranks' port with `meeting`. Imports nothing: a rank by
spawn comes through here.
"""
