"""The operator: makes of each Run what it asks for, and writes its status.

`view` is what there is of a Run at one moment, `decisions` what is to be done next and `standing` its status, all three
pure; `observing` reads, `reconciler` does, and `removal` deletes the files and the record of a run.
"""
