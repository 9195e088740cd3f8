"""Fourfold: a fusion backend for block-scaled FP4 matrix multiplication.

    import fourfold

    backend = fourfold.Backend()
    print(backend.explain(program))
    module = backend.compile(program)
    outputs = module(x=x, w=w)

`import fourfold.torch` adds ops and a compiler backend to PyTorch.
"""

from ._abi import Error
from ._arrays import pack
from ._backend import Backend, Decision, Module, Plan, Port, Prepared, Report, Segment, Session

__version__ = "0.1.0"
__all__ = [
    "Backend",
    "Decision",
    "Error",
    "Module",
    "Plan",
    "Port",
    "Prepared",
    "Report",
    "Segment",
    "Session",
    "pack",
]
