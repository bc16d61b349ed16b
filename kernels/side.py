"""One side of a write, key or value, as a kernel sees it. Needs no pypto."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Side:
    """Rows of one source and one cache.

    dtype: carrier of both. row: elements L of a cache row. groups: rows G of a token.
    width: elements of a source row; column: where in it the L elements of a cache row begin.
    """

    dtype: str
    row: int
    groups: int
    width: int
    column: int = 0
