"""Fourfold as a plug-in execution provider of ONNX Runtime.

The package holds the library only. Register it with `onnxruntime.register_execution_provider_library`.
"""

import pathlib
import sys

__all__ = ["get_ep_name", "get_ep_names", "get_library_path"]

_NAMES = {
    "win32": "fourfold_onnxruntime.dll",
    "darwin": "libfourfold_onnxruntime.dylib",
}


def get_library_path() -> str:
    """Return the absolute path of the library."""
    name = _NAMES.get(sys.platform, "libfourfold_onnxruntime.so")
    return str(pathlib.Path(__file__).resolve().with_name(name))


def get_ep_name() -> str:
    """Return the name of the execution provider."""
    return "FourfoldExecutionProvider"


def get_ep_names() -> list[str]:
    """Return the names of all execution providers of the library."""
    return [get_ep_name()]
