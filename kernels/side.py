"""One side of a write, key or value, as a kernel sees it. Needs no pypto."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Side:
    """Rows of one source and one cache.

    dtype: carrier of both. row: elements L of a cache row. groups: rows G of a token.
    width: elements of a source row; column: where in it the L elements of a cache row begin.
    wraps: 2**bits where the carrier is the signed type of an unsigned one whose values matter, else 0.
    """

    dtype: str
    row: int
    groups: int
    width: int
    column: int = 0
    wraps: int = 0

    @property
    def is_integer(self) -> bool:
        return self.dtype.startswith("int")
