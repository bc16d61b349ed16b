"""The errors of a refused call, and their codes (section 6 of the operator's specification)."""

from __future__ import annotations


class ScatterPaKvCacheError(ValueError):
    """A call that was refused. Nothing has been written when it is raised.

    ``code`` is the operator's number for the class of error; ``rule`` is the id of the broken rule in section 6 of the
    operator's specification ("F3"), or "argument" for what only a Python call can get wrong.
    """

    code: int = 161002

    def __init__(self, message: str, rule: str = "argument") -> None:
        super().__init__(message)
        self.rule = rule

    def __str__(self) -> str:
        return f"{super().__str__()} [{self.rule}]"


class NullPointerError(ScatterPaKvCacheError):
    """A required tensor is None (rules A)."""

    code = 161001


class InvalidParameterError(ScatterPaKvCacheError):
    """A rank or dtype that the operator does not take (rules C and D), or an argument of the wrong kind."""

    code = 161002


class TilingError(ScatterPaKvCacheError):
    """Modes, shapes or sizes that do not fit together (rules E, F, J, N, H, K, G)."""

    code = 561002


class DataError(ScatterPaKvCacheError):
    """Slots, lengths or offsets that do not fit the caches (rules V; only when data is checked)."""

    code = 161002


class ScatterPaKvCacheWarning(UserWarning):
    """A documented condition that is neither needed nor enough (rule V9)."""


class SimulationError(RuntimeError):
    """Sim could not prove a call: PyPTO failed, a verdict was not PASS, or memory is short. Caches are as before."""
