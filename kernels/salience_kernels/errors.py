"""Failures of the kernels room; a wrong argument is a plain `ValueError` instead.

KernelsError
└── ImplUnavailable     the implementation asked for by name cannot run here or on these inputs
"""


class KernelsError(Exception):
    """Root of this room's failures."""


class ImplUnavailable(KernelsError):
    """An implementation asked for by name cannot run.

    Attributes:
        impl: Name of the implementation.
        reason: Why it cannot run, in words.
    """

    def __init__(self, impl: str, reason: str) -> None:
        super().__init__(f"implementation {impl!r} cannot run: {reason}")
        self.impl = impl
        self.reason = reason
