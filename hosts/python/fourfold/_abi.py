"""The C interface of Fourfold, as ctypes. `hosts/capi/include/fourfold.h` documents every field."""

import atexit
import ctypes as c
import pathlib

ABI = (1, 0)
LIBRARY = pathlib.Path(__file__).with_name("libfourfold_python.so")
CPU, CUDA, CUDA_HOST = 1, 2, 3


class Str(c.Structure):
    _fields_ = [("ptr", c.c_void_p), ("len", c.c_size_t)]

    def __str__(self):
        return c.string_at(self.ptr, self.len).decode() if self.len else ""


class Version(c.Structure):
    _fields_ = [("major", c.c_uint32), ("minor", c.c_uint32)]


class Option(c.Structure):
    _fields_ = [("key", Str), ("value", Str)]


class Device(c.Structure):
    _fields_ = [("type", c.c_int32), ("id", c.c_int32)]


class DataType(c.Structure):
    _fields_ = [("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16)]


class Tensor(c.Structure):
    _fields_ = [
        ("data", c.c_void_p),
        ("device", Device),
        ("ndim", c.c_int32),
        ("dtype", DataType),
        ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
        ("byte_offset", c.c_uint64),
    ]


class Decision(c.Structure):
    _fields_ = [
        ("op", c.c_uint32),
        ("segment", c.c_uint32),
        ("tier", c.c_uint32),
        ("reserved", c.c_uint32),
        ("name", Str),
        ("reason", Str),
        ("message", Str),
    ]


class Segment(c.Structure):
    _fields_ = [("tier", c.c_uint32), ("op_count", c.c_uint32), ("name", Str)]


class Port(c.Structure):
    _fields_ = [
        ("name", Str),
        ("type", Str),
        ("shape", c.POINTER(c.c_int64)),
        ("ndim", c.c_int32),
        ("code", c.c_uint8),
        ("bits", c.c_uint8),
        ("lanes", c.c_uint16),
        ("layout", c.c_uint32),
        ("flags", c.c_uint32),
        ("bytes", c.c_int64),
    ]


class Symbol(c.Structure):
    _fields_ = [("name", Str), ("extent", c.c_int64)]


LOG = c.CFUNCTYPE(None, c.c_void_p, c.c_int32, Str)


def _args(name, *fields):
    """An argument struct: its size and `ext` come first."""
    return type(name, (c.Structure,), {"_fields_": [("struct_size", c.c_size_t), ("ext", c.c_void_p), *fields]})


BackendCreateArgs = _args(
    "BackendCreateArgs",
    ("options", c.POINTER(Option)),
    ("option_count", c.c_size_t),
    ("log", LOG),
    ("log_user", c.c_void_p),
    ("backend", c.c_void_p),
)
QuerySupportArgs = _args(
    "QuerySupportArgs",
    ("backend", c.c_void_p),
    ("ir", Str),
    ("report", c.c_void_p),
    ("decisions", c.POINTER(Decision)),
    ("decision_count", c.c_size_t),
    ("segments", c.POINTER(Segment)),
    ("segment_count", c.c_size_t),
)
CompileArgs = _args(
    "CompileArgs",
    ("backend", c.c_void_p),
    ("ir", Str),
    ("flags", c.c_uint32),
    ("reserved", c.c_uint32),
    ("module", c.c_void_p),
)
ModuleWaitArgs = _args(
    "ModuleWaitArgs",
    ("module", c.c_void_p),
    ("timeout_ms", c.c_int64),
    ("is_ready", c.c_uint32),
    ("reserved", c.c_uint32),
)
ModuleInfoArgs = _args(
    "ModuleInfoArgs",
    ("module", c.c_void_p),
    ("symbols", c.POINTER(Symbol)),
    ("symbol_count", c.c_size_t),
    ("info", c.c_void_p),
    ("inputs", c.POINTER(Port)),
    ("outputs", c.POINTER(Port)),
    ("input_count", c.c_size_t),
    ("output_count", c.c_size_t),
    ("symbol_names", c.POINTER(Str)),
    ("symbol_name_count", c.c_size_t),
    ("workspace_size", c.c_int64),
    ("workspace_align", c.c_size_t),
    ("is_ready", c.c_uint32),
    ("is_capturable", c.c_uint32),
    ("why_not", Str),
    ("compat", Str),
)
ExecuteArgs = _args(
    "ExecuteArgs",
    ("module", c.c_void_p),
    ("inputs", c.POINTER(Tensor)),
    ("outputs", c.POINTER(Tensor)),
    ("input_count", c.c_size_t),
    ("output_count", c.c_size_t),
    ("stream", c.c_void_p),
    ("symbols", c.POINTER(Symbol)),
    ("symbol_count", c.c_size_t),
)
SessionCreateArgs = _args(
    "SessionCreateArgs",
    ("module", c.c_void_p),
    ("params", c.POINTER(Tensor)),
    ("param_count", c.c_size_t),
    ("symbols", c.POINTER(Symbol)),
    ("symbol_count", c.c_size_t),
    ("session", c.c_void_p),
)
SessionRunArgs = _args(
    "SessionRunArgs",
    ("session", c.c_void_p),
    ("inputs", c.POINTER(Tensor)),
    ("outputs", c.POINTER(Tensor)),
    ("input_count", c.c_size_t),
    ("output_count", c.c_size_t),
    ("was_prepared", c.c_uint32),
    ("reserved", c.c_uint32),
)
PrepareArgs = _args(
    "PrepareArgs",
    ("module", c.c_void_p),
    ("session", c.c_void_p),
    ("symbols", c.POINTER(Symbol)),
    ("symbol_count", c.c_size_t),
    ("inputs", c.POINTER(c.c_void_p)),
    ("outputs", c.POINTER(c.c_void_p)),
    ("input_count", c.c_size_t),
    ("output_count", c.c_size_t),
    ("workspace", c.c_void_p),
    ("workspace_size", c.c_size_t),
    ("stream", c.c_void_p),
    ("prepared", c.c_void_p),
)
LaunchArgs = _args(
    "LaunchArgs",
    ("prepared", c.c_void_p),
    ("inputs", c.POINTER(c.c_void_p)),
    ("outputs", c.POINTER(c.c_void_p)),
    ("input_count", c.c_size_t),
    ("output_count", c.c_size_t),
    ("stream", c.c_void_p),
)


def _call(args):
    return c.CFUNCTYPE(c.c_void_p, c.POINTER(args))


_DESTROY = c.CFUNCTYPE(None, c.c_void_p)
_TEXT = c.CFUNCTYPE(Str, c.c_void_p)


class Api(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("ext", c.c_void_p),
        ("version", Version),
        ("features", c.c_uint32),
        ("reserved", c.c_uint32),
        ("name", Str),
        ("error_destroy", _DESTROY),
        ("error_code", c.CFUNCTYPE(c.c_int32, c.c_void_p)),
        ("error_message", _TEXT),
        ("error_reason", _TEXT),
        ("backend_create", _call(BackendCreateArgs)),
        ("backend_destroy", _DESTROY),
        ("backend_target", _TEXT),
        ("query_support", _call(QuerySupportArgs)),
        ("report_destroy", _DESTROY),
        ("compile", _call(CompileArgs)),
        ("module_wait", _call(ModuleWaitArgs)),
        ("module_cancel", _DESTROY),
        ("module_info", _call(ModuleInfoArgs)),
        ("info_destroy", _DESTROY),
        ("module_destroy", _DESTROY),
        ("execute", _call(ExecuteArgs)),
        ("session_create", _call(SessionCreateArgs)),
        ("session_run", _call(SessionRunArgs)),
        ("session_destroy", _DESTROY),
        ("prepare", _call(PrepareArgs)),
        ("launch", _call(LaunchArgs)),
        ("prepared_fault", c.CFUNCTYPE(c.c_void_p, c.c_void_p)),
        ("prepared_destroy", _DESTROY),
    ]


class Error(Exception):
    """An error of Fourfold.

    `code` is one of the codes below, `reason` a stable word such as `"no_device"` or `"unknown_op"`, and `message` the
    text.
    """

    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13

    def __init__(self, code, reason, message):
        super().__init__(f"{message} [{reason}]" if reason else message)
        self.code, self.reason, self.message = code, reason, message

    def __reduce__(self):
        return Error, (self.code, self.reason, self.message)


def _load():
    if not LIBRARY.is_file():
        raise ImportError(f"{LIBRARY} is missing: install the package with `pip install hosts/python`")
    library = c.CDLL(str(LIBRARY))
    library.fourfold_plugin_query.restype = c.POINTER(Api)
    library.fourfold_plugin_query.argtypes = [Version]
    table = library.fourfold_plugin_query(Version(*ABI))
    if not table or table.contents.struct_size < c.sizeof(Api):
        raise ImportError(f"{LIBRARY} has another version of the C interface than {ABI[0]}.{ABI[1]}: install it again")
    return library, table.contents


library, api = _load()
# ctypes releases Python's lock during the call, so that log functions that are running can return.
atexit.register(library.fourfold_python_close_log)


def text(value):
    """A borrowed string, and the bytes that it points to."""
    data = value.encode()
    return Str(c.cast(c.c_char_p(data), c.c_void_p), len(data)), data


def call(function, args):
    """Calls a function of the table, and raises its error."""
    args.struct_size = c.sizeof(args)
    check(function(c.byref(args)))


def check(error):
    """Raises an error of the table, unless it is null."""
    if error:
        code, message, reason = api.error_code(error), str(api.error_message(error)), str(api.error_reason(error))
        api.error_destroy(error)
        raise Error(code, reason, message)


def symbols(extents):
    """An array of symbols with their extents, its length, and the memory that it points to."""
    array, kept = (Symbol * len(extents))(), []
    for place, (name, extent) in enumerate(extents.items()):
        borrowed, data = text(name)
        array[place] = Symbol(borrowed, extent)
        kept.append(data)
    return array, len(extents), kept
