"""A trial of several processes: `supervisor` starts and ends them, `rank` is one, `verdict` combines their outcomes.

`starting` and `stragglers` are the supervisor's; a slot holds the rendezvous port with `meeting`. Imports nothing, as a
spawned rank imports this package.
"""
