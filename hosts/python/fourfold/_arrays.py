"""Arrays of NumPy, and of any library with DLPack, as tensors of the C interface."""

import ctypes as c

import numpy as np

from . import _abi
from ._abi import Error

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

# DLPack code, bits and lanes of each element type.
DLPACK = {
    "i32": (0, 32, 1),
    "f16": (2, 16, 1),
    "f32": (2, 32, 1),
    "bf16": (4, 16, 1),
    "i1": (6, 8, 1),
    "f8E4M3FN": (10, 8, 1),
    "f8E5M2": (12, 8, 1),
    "f8E8M0FNU": (14, 8, 1),
    "f4E2M1FN": (17, 4, 2),
}
_UINT8 = (1, 8, 1)
_PLAIN = {"f32": np.float32, "f16": np.float16, "i32": np.int32, "i1": np.bool_}
_ML = {
    "bf16": "bfloat16",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E5M2": "float8_e5m2",
    "f8E8M0FNU": "float8_e8m0fnu",
}
_capsule_name = c.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = c.c_char_p, [c.py_object]
_capsule_pointer = c.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = c.c_void_p, [c.py_object, c.c_char_p]
# The offset of the tensor in DLPack's DLManagedTensorVersioned.
_VERSIONED = 32


def dtype(element):
    """NumPy's dtype for the memory of an element type. Without ml_dtypes, narrow types are unsigned integers."""
    if element in _PLAIN:
        return np.dtype(_PLAIN[element])
    if ml_dtypes is not None and element in _ML:
        return np.dtype(getattr(ml_dtypes, _ML[element]))
    return np.dtype(np.uint16 if element == "bf16" else np.uint8)


def pack(codes):
    """Packs FP4 codes or values, one each byte as ml_dtypes has them, into bytes: the even index in the low nibble."""
    codes = np.ascontiguousarray(codes)
    if codes.dtype.itemsize != 1:
        raise TypeError(f"codes are one byte each, but the array has the dtype {codes.dtype}")
    codes = codes.view(np.uint8) & 0xF
    if codes.shape[-1] % 2:
        raise ValueError(f"FP4 is packed in pairs along the last axis, but its extent is {codes.shape[-1]}")
    return codes[..., 0::2] | codes[..., 1::2] << 4


class Array:
    """An array given for a port: its memory, and its shape in elements where it has one."""

    def __init__(self, port, value):
        self.port = port
        if isinstance(value, (np.ndarray, np.generic)) or not hasattr(value, "__dlpack__"):
            self._from_numpy(np.asarray(value))
        else:
            self._from_dlpack(value)

    def _from_numpy(self, array):
        element = self.port.type.element
        if ml_dtypes is not None and array.dtype == np.dtype(ml_dtypes.float4_e2m1fn) and element == "f4E2M1FN":
            array = pack(array)
        # NumPy makes an array of one axis of a scalar there.
        array = np.ascontiguousarray(array) if array.ndim else array
        if element == "bf16" and array.dtype == np.uint16:
            kind = DLPACK["bf16"]
        elif array.dtype == dtype(element) and element not in ("f4E2M1FN",):
            kind = DLPACK[element] if array.dtype != np.uint8 else _UINT8
        elif array.dtype == np.uint8 and DLPACK[element][1] <= 8:
            kind = _UINT8
        else:
            raise self._error(f"has the dtype {array.dtype}")
        self.kept, self.device, self.kind = array, (_abi.CPU, 0), kind
        self.address, self.sizes = array.ctypes.data, array.shape

    def _from_dlpack(self, value):
        on_host = value.__dlpack_device__()[0] in (_abi.CPU, _abi.CUDA_HOST)
        # 1 is CUDA's default stream, on which a module runs. Sessions state that arrays must be ready.
        capsule = value.__dlpack__() if on_host else value.__dlpack__(stream=1)
        name = _capsule_name(capsule)
        offset = _VERSIONED if name == b"dltensor_versioned" else 0
        tensor = _abi.Tensor.from_address(_capsule_pointer(capsule, name) + offset)
        shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
        if tensor.strides and 0 not in shape:
            expected = 1
            for axis in reversed(range(tensor.ndim)):
                if shape[axis] != 1 and tensor.strides[axis] != expected:
                    raise self._error("is not contiguous: copy it to compact row-major memory")
                expected *= shape[axis]
        self.kept, self.device = capsule, (tensor.device.type, tensor.device.id)
        self.kind = (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
        self.address, self.sizes = (tensor.data or 0) + tensor.byte_offset, shape

    def _error(self, problem):
        message = f"the array for `%{self.port.name}: {self.port.type}` {problem}"
        return Error(Error.INVALID_ARGUMENT, "array", message)

    @property
    def shape(self):
        """The shape in elements; None for blocked scales, whose array may have any shape of the padded size."""
        if self.port.type.layout == "blocked":
            return None
        if self.port.type.element == "f4E2M1FN" and self.kind != (17, 4, 1) and self.sizes:
            return (*self.sizes[:-1], self.sizes[-1] * 2)
        return tuple(self.sizes)

    def tensor(self, shape):
        """The tensor of the C interface for a shape in elements, and the memory that it points to."""
        if self.port.type.layout == "blocked":
            expected, found = self.port.type.storage(shape), 1
            for size in self.sizes:
                found *= size
            if found != expected[-1] * _product(expected[:-1]):
                raise self._error(f"has the shape {tuple(self.sizes)}; expected the padded storage {expected}")
            sizes = shape
        else:
            sizes = self.sizes
        extents = (c.c_int64 * len(sizes))(*sizes)
        tensor = _abi.Tensor(self.address, _abi.Device(*self.device), len(sizes), _abi.DataType(*self.kind), extents)
        return tensor, (self, extents)


def _product(sizes):
    product = 1
    for size in sizes:
        product *= size
    return product


def empty(port, shape):
    """A new NumPy array for an output."""
    return np.empty(port.type.storage(shape), dtype(port.type.element))


def tensors(pairs):
    """An array of tensors for (Array, shape) pairs, and the memory that it points to."""
    made = [array.tensor(shape) for array, shape in pairs]
    return (_abi.Tensor * len(made))(*(tensor for tensor, _ in made)), [kept for _, kept in made]
