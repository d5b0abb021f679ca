"""Inputs of a model that a user gives, on which plans are compared and timed in place of random ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from einnet_explore.onnx_import.model import Model
from einnet_explore.runtime.arrays import Array

Inputs: TypeAlias = "Mapping[str, npt.ArrayLike] | str | Path"
"""Arrays by input name, or the path of an archive of them."""

ARGUMENT = "inputs"
"""The source of inputs that no file has."""


@dataclass(frozen=True, slots=True)
class GivenInputs:
    """Arrays by input name, and their *source* as errors and reports name it."""

    arrays: Mapping[str, Array]
    source: str

    def for_model(self, model: Model) -> dict[str, Array]:
        """Return the arrays in the types of the inputs of *model*.

        Raises ValueError for an input that is missing or unknown, for another shape, and for values that the type of
        the input cannot have (real numbers where integers are expected, an integer that is out of range).
        """
        expected = {value.name: value for value in model.inputs}
        if self.arrays.keys() != expected.keys():
            names = ", ".join(self.arrays) or "no array"
            raise ValueError(
                f"{self.source}: found {names}, expected the inputs of {model.path}: {', '.join(expected)}"
            )
        found = {}
        for name, value in expected.items():
            array = self.arrays[name]
            if array.shape != value.shape:
                raise ValueError(f"{self.source}: input {name} has shape {array.shape}, expected {value.shape}")
            if value.dtype is None or not np.can_cast(array.dtype, value.dtype, "same_kind"):
                raise ValueError(f"{self.source}: input {name} has type {array.dtype}, expected {value.dtype}")
            with np.errstate(over="ignore"):
                found[name] = np.asarray(array, value.dtype)
            if array.dtype.kind in "iu" and value.dtype.kind in "iu" and not np.array_equal(found[name], array):
                raise ValueError(f"{self.source}: input {name} has values beyond {value.dtype}")
        return found


def describe_inputs(source: str) -> str:
    """Name given inputs in a report by their *source*."""
    return "your inputs" if source == ARGUMENT else f"your inputs, {source}"


def given_inputs(given: Inputs | None) -> GivenInputs | None:
    """Return the inputs in a NumPy archive (``.npz``), or in a mapping from names to arrays; None for None.

    Raises OSError for a file that cannot be read, ValueError for one that is no archive of arrays of numbers.
    """
    if given is None:
        return None
    if isinstance(given, Mapping):
        return GivenInputs({name: np.asarray(value) for name, value in given.items()}, ARGUMENT)
    try:
        with np.load(given) as archive:
            arrays = {name: archive[name] for name in archive}
    except OSError:
        raise
    except Exception:  # NumPy and zipfile say in many ways that a file is none of theirs
        raise ValueError(f"{given}: found no archive of arrays, expected one that numpy.savez wrote") from None
    return GivenInputs(arrays, str(given))
