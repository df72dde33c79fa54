"""Move large files of a slot into Ray's object store, and read objects from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import ray

from trialplane import errors


class RayStore:
    """Ray's object store. An object in it exists as long as something refers to it, on any node."""

    def put(self, file: Path) -> ray.ObjectRef[Any]:
        """Move a file into the store, and return the reference to its bytes."""
        reference = ray.put(np.fromfile(file, dtype=np.uint8))
        file.unlink()
        return reference

    def get(self, reference: ray.ObjectRef[Any]) -> Any:
        """Return an object, which may lie on another node.

        Raises:
            SlotError: It is lost.
        """
        try:
            return ray.get(reference)
        except ray.exceptions.RayError as error:
            raise errors.SlotError(errors.first_line(error)) from error
