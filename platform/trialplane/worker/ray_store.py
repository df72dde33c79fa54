"""Ray's object store, as a slot uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import ray

from trialplane import errors


class RayStore:
    """Objects that outlive the slot's call that created them, until nothing refers to them."""

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
