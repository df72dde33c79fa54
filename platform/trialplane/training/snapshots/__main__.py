"""Print or write a comparison of snapshots, `python -m trialplane.training.snapshots FOLDER [--to OUT]`: see `report`."""

import sys

from trialplane.training.snapshots import report

if __name__ == "__main__":
    sys.exit(report.main(sys.argv[1:]))
