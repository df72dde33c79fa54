"""A trial of several processes: `supervisor` starts and ends them, `rank` is one, `verdict` makes one outcome of theirs.

`starting`, `pipes` and `stragglers` are the supervisor's; a slot holds the ranks' port with `meeting`; `together` is how the
ranks of a training meet from within. Imports nothing: a rank by spawn comes through here, and so does a checkpoint.
"""
