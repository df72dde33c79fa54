"""Whether the MLflow server of this pod reads its database: one experiment, asked for as its administrator.

A readiness probe runs it, where basic authentication is on. Ends with 1 and the reason when it does not.
"""

from __future__ import annotations

import base64
import os
import sys
import urllib.error
import urllib.request

URL = "http://localhost:5000/api/2.0/mlflow/experiments/search?max_results=1"
TIMEOUT = 8.0  # seconds; less than the probe's


def main() -> int:
    """Asks once."""
    pair = f"{os.environ['MLFLOW_AUTH_ADMIN_USERNAME']}:{os.environ['MLFLOW_AUTH_ADMIN_PASSWORD']}".encode()
    request = urllib.request.Request(URL, headers={"Authorization": f"Basic {base64.b64encode(pair).decode()}"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT):
            return 0
    except urllib.error.HTTPError as error:
        # Whoever changed the password in MLflow, and not in the Secret, must not take the server away.
        if error.code == 401:
            return 0
        sys.stderr.write(f"MLflow answers {error.code}: {error.read(300).decode(errors='replace')}\n")
    except OSError as error:
        sys.stderr.write(f"MLflow does not answer: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
