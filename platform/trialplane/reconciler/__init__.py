"""The operator: makes of each Run what it asks for, and writes its status.

`view` is what there is of a Run at one moment, `decisions` what is to be done next and `standing` its status, all three
pure; `reconciler` reads and does.
"""
