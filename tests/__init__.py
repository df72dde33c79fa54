"""Tests of trialplane; they mirror the rooms. `python -m tests` runs everything."""
