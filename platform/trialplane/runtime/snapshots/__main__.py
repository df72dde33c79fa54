"""Prints or writes the comparison of snapshots: `python -m trialplane.runtime.snapshots FOLDER [--to OUT]`; see `report`."""

import sys

from trialplane.runtime.snapshots import report

if __name__ == "__main__":
    sys.exit(report.main(sys.argv[1:]))
