"""A trial of several processes: `supervisor` starts and ends them, `rank` is one of them, `verdict` combines their outcomes.

`starting` and `stragglers` are parts of the supervisor; a slot holds the rendezvous port with `meeting`. This file imports
nothing, as a spawned rank imports the package.
"""
