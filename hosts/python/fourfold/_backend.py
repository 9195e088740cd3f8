"""Backends, plans, modules, sessions and prepared launches."""

import ctypes as c
import dataclasses
import weakref

from . import _abi, _arrays
from ._abi import Error, api, call, check, text
from ._types import Signature, Type, solve

TIERS = ("kernel", "device", "fallback", "removed")
_REMOVED = 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class Decision:
    """The decision for one op of the program as given."""

    op: int
    name: str  # "%result = mnemonic"
    tier: str  # "kernel", "device", "fallback" or "removed"
    segment: int | None
    reason: str  # the stable code of the reason that the op is in no kernel, or ""
    message: str

    def __str__(self):
        because = f": {self.reason}: {self.message}" if self.reason else ""
        return f"{self.tier:8} {self.name}{because}"


@dataclasses.dataclass(frozen=True)
class Segment:
    """Ops that run together: one kernel or library call on the GPU, or a part of the fallback."""

    tier: str
    op_count: int
    name: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """The decisions for a program, before anything is built."""

    target: str
    decisions: tuple
    segments: tuple

    @property
    def kernels(self):
        """The segments that are one kernel with a block-scaled product."""
        return tuple(segment for segment in self.segments if segment.tier == "kernel")

    def explain(self):
        """Text for people: the segments, with the ops of each and the reasons that they are in no kernel."""
        lines = [f"target {self.target}, {len(self.segments)} segments, {len(self.kernels)} kernels"]
        for index, segment in enumerate(self.segments):
            lines.append(f"{index} {segment.tier} {segment.name}".rstrip())
            for decision in self.decisions:
                if decision.segment == index:
                    because = f": {decision.reason}: {decision.message}" if decision.reason else ""
                    lines.append(f"    {decision.name}{because}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Port:
    """An input or output of a module."""

    name: str
    type: Type
    is_param: bool

    @property
    def shape(self):
        """The extents of elements, as text for those with a symbol."""
        return tuple(extent.factor if not extent.symbols else str(extent) for extent in self.type.extents)

    def __str__(self):
        return f"{'param ' if self.is_param else ''}%{self.name}: {self.type}"


@dataclasses.dataclass(frozen=True)
class Report:
    """The state of a module, for given extents if they are known."""

    plan: Plan
    is_ready: bool  # no kernel is being built
    is_capturable: bool  # `prepare` would succeed
    why_not: str  # the reason if it would fail
    workspace: int | None  # bytes, if the extents are known and `prepare` would succeed
    compat: str  # the target and the version that plans and kernels depend on


class _Handle:
    """A handle of the C interface, freed with the object."""

    def __init__(self, handle, destroy):
        self._handle = handle
        self._free = weakref.finalize(self, destroy, handle)
        self._free.atexit = False

    def __reduce_ex__(self, protocol):
        raise TypeError(f"a {type(self).__name__} of Fourfold cannot be copied or pickled: create it again")


class Backend(_Handle):
    """Plans and compiles programs for one target and device.

    Options, all with the meaning of `hosts/capi/include/fourfold.h`: `target`, `device`, `claim`, `contract`,
    `dispatch`, `emulate`, `provision`, `known_bad`, `cache`, `tiers`, `jobs`, `build`. `log(level, line)` receives
    progress, on any thread; level 1 is a warning.
    """

    def __init__(self, *, log=None, **options):
        entries, kept = (_abi.Option * len(options))(), []
        for place, (key, value) in enumerate(options.items()):
            value = str(value).lower() if isinstance(value, bool) else str(value)
            (key, key_data), (value, value_data) = text(key), text(value)
            entries[place] = _abi.Option(key, value)
            kept += [key_data, value_data]
        args = _abi.BackendCreateArgs(options=entries, option_count=len(options))
        if log is not None:
            own = _abi.LOG(lambda _, level, line: log(level, str(line)))
            # Builds in the background may still call it when this object is gone.
            _KEPT.append(own)
            args.log = c.cast(_abi.library.fourfold_python_log, _abi.LOG)
            args.log_user = c.cast(own, c.c_void_p)
        call(api.backend_create, args)
        super().__init__(args.backend, api.backend_destroy)

    @property
    def target(self):
        """The target that programs are planned for, such as `sm_120a`."""
        return str(api.backend_target(self._handle))

    def plan(self, program):
        """Plans a program; builds nothing."""
        ir, _data = text(program)
        args = _abi.QuerySupportArgs(backend=self._handle, ir=ir)
        call(api.query_support, args)
        try:
            segments = tuple(
                Segment(TIERS[found.tier], found.op_count, str(found.name))
                for found in args.segments[: args.segment_count]
            )
            decisions = tuple(
                Decision(
                    found.op,
                    str(found.name),
                    TIERS[found.tier],
                    None if found.segment == _REMOVED else found.segment,
                    str(found.reason),
                    str(found.message),
                )
                for found in args.decisions[: args.decision_count]
            )
        finally:
            api.report_destroy(args.report)
        return Plan(self.target, decisions, segments)

    def explain(self, program):
        """Plans a program, and says for people which ops become which kernels, and why others do not."""
        return self.plan(program).explain()

    def compile(self, program, *, background=False):
        """Plans a program and builds its kernels. A segment without a kernel runs on the CPU.

        With `background`, returns before kernels are built; see `Module.wait`.
        """
        ir, _data = text(program)
        args = _abi.CompileArgs(backend=self._handle, ir=ir, flags=int(background))
        call(api.compile, args)
        return Module(args.module, self, program)


# Log functions, which the library may call until the process ends.
_KEPT = []


class Module(_Handle):
    """A compiled program. `module(x=..., w=...)` runs it."""

    def __init__(self, handle, backend, program):
        super().__init__(handle, api.module_destroy)
        self.program, self._backend = program, backend
        self.inputs, self.outputs, self.symbols = self._info({}, self._ports)

    def _ports(self, args):
        def ports(found):
            return tuple(Port(str(port.name), Type.parse(str(port.type)), bool(port.flags & 1)) for port in found)

        inputs, outputs = ports(args.inputs[: args.input_count]), ports(args.outputs[: args.output_count])
        return inputs, outputs, tuple(str(name) for name in args.symbol_names[: args.symbol_name_count])

    def _info(self, extents, read):
        array, count, _kept = _abi.symbols(extents)
        args = _abi.ModuleInfoArgs(module=self._handle, symbols=array, symbol_count=count)
        call(api.module_info, args)
        try:
            return read(args)
        finally:
            api.info_destroy(args.info)

    def report(self, **extents):
        """The module's state, for extents such as `M=91`."""
        plan = self._backend.plan(self.program)

        def read(args):
            workspace = args.workspace_size if args.workspace_size >= 0 else None
            why_not, compat = str(args.why_not), str(args.compat)
            return Report(plan, bool(args.is_ready), bool(args.is_capturable), why_not, workspace, compat)

        return self._info(extents, read)

    def wait(self, timeout=None):
        """Waits at most `timeout` seconds for kernels that are built in the background. Returns true if none is."""
        milliseconds = -1 if timeout is None else max(0, round(timeout * 1000))
        args = _abi.ModuleWaitArgs(module=self._handle, timeout_ms=milliseconds)
        call(api.module_wait, args)
        return bool(args.is_ready)

    def cancel(self):
        """Ends builds in the background. Their segments run on the CPU."""
        api.module_cancel(self._handle)

    def __call__(self, /, *, symbols=None, out=None, **arrays):
        """Runs the program on arrays by name, and returns its outputs as a dict of arrays.

        Arrays are NumPy's, or of any library with DLPack. FP4 is bytes with two codes each, or ml_dtypes'
        `float4_e2m1fn`; blocked scales are their padded storage in any shape. Names with a dot are passed as
        `**{"fc1.weight": w}`. `symbols` has extents that no array determines. `out` has arrays to write, such as
        those on a GPU; the others are new and on the host.
        """
        args = _abi.ExecuteArgs(module=self._handle)
        return _run(args, api.execute, self.inputs, self.outputs, arrays, out, dict(symbols or {}))

    def session(self, /, *, symbols=None, **params):
        """Takes the params, arrays by name on the host, for repeated calls. They are copied, and uploaded once."""
        return Session(self, params, dict(symbols or {}))

    def prepare(self, symbols, inputs, outputs, *, stream=0, workspace=0, workspace_size=0):
        """Prepares launches on a GPU for extents such as `{"M": 91}`; see `Prepared`.

        `inputs` and `outputs` are device addresses in the order of the ports, 0 for a value without elements.
        """
        return Prepared({"module": self._handle}, symbols, inputs, outputs, stream, workspace, workspace_size, self)


class Session(_Handle):
    """A module with its params. `session(x=...)` runs it."""

    def __init__(self, module, params, symbols):
        self._module, self._symbols = module, symbols
        ports = [port for port in module.inputs if port.is_param]
        arrays, known = _bind(ports, params, symbols)
        self._known = known
        pairs = [(array, port.type.shape(known)) for port, array in zip(ports, arrays)]
        tensors, _kept = _arrays.tensors(pairs)
        array, count, _names = _abi.symbols(symbols)
        args = _abi.SessionCreateArgs(
            module=module._handle, params=tensors, param_count=len(ports), symbols=array, symbol_count=count
        )
        call(api.session_create, args)
        super().__init__(args.session, api.session_destroy)
        self.was_prepared = None  # after a call: every segment ran on the GPU

    def __call__(self, /, *, out=None, **arrays):
        """Runs the program; like a call of the module, without params.

        A session has a stream of its own: work that writes CUDA arrays must have ended.
        """
        inputs = [port for port in self._module.inputs if not port.is_param]
        args = _abi.SessionRunArgs(session=self._handle)
        results = _run(args, api.session_run, inputs, self._module.outputs, arrays, out, dict(self._known))
        self.was_prepared = bool(args.was_prepared)
        return results

    def prepare(self, symbols, inputs, outputs, *, stream=0, workspace=0, workspace_size=0):
        """Like `Module.prepare`, with the inputs that are not params."""
        return Prepared({"session": self._handle}, symbols, inputs, outputs, stream, workspace, workspace_size, self)


class Prepared(_Handle):
    """Launches of a program on a GPU. A launch takes fresh addresses, waits for nothing and can be captured in a graph.

    Several launches may be in flight if the device runs them one after the other, as on one stream. Until the device
    is done, the memory must stay valid and this object alive. A graph needs it for as long as it is launched.
    """

    def __init__(self, source, symbols, inputs, outputs, stream, workspace, workspace_size, owner):
        self._owner = owner
        array, count, _names = _abi.symbols(symbols)
        args = _abi.PrepareArgs(
            **source,
            symbols=array,
            symbol_count=count,
            inputs=(c.c_void_p * len(inputs))(*inputs),
            outputs=(c.c_void_p * len(outputs))(*outputs),
            input_count=len(inputs),
            output_count=len(outputs),
            workspace=workspace,
            workspace_size=workspace_size,
            stream=stream,
        )
        call(api.prepare, args)
        super().__init__(args.prepared, api.prepared_destroy)

    def launch(self, inputs=None, outputs=None, *, stream=0):
        """Puts the program on a stream. Without addresses, the previous ones remain."""
        args = _abi.LaunchArgs(prepared=self._handle, stream=stream)
        if inputs is not None or outputs is not None:
            inputs, outputs = list(inputs or ()), list(outputs or ())
            args.inputs, args.input_count = (c.c_void_p * len(inputs))(*inputs), len(inputs)
            args.outputs, args.output_count = (c.c_void_p * len(outputs))(*outputs), len(outputs)
        call(api.launch, args)

    def check(self):
        """Raises the first fault of the launches since the last call, such as an index of a `gather` outside its axis.

        Every launch must have ended.
        """
        check(api.prepared_fault(self._handle))


def _bind(ports, arrays, known):
    """The arrays of ports by name, and the symbols that they and `known` determine."""
    names = {port.name for port in ports}
    for problem, found in (("is missing", names - arrays.keys()), ("is no input", arrays.keys() - names)):
        if found:
            expected = ", ".join(str(port) for port in ports)
            message = f"`%{sorted(found)[0]}` {problem}; expected arrays for {expected}"
            raise Error(Error.INVALID_ARGUMENT, "inputs", message)
    bound = [_arrays.Array(port, arrays[port.name]) for port in ports]
    return bound, solve([(port.name, port.type) for port in ports], [array.shape for array in bound], known)


def _shape(port, known):
    shape = port.type.shape(known)
    if None in shape:
        message = f"the extents of `{port}` are not determined; pass symbols={{...}}"
        raise Error(Error.INVALID_ARGUMENT, "symbols", message)
    return shape


def _run(args, function, inputs, outputs, arrays, out, given):
    bound, known = _bind(inputs, arrays, given)
    out = dict(out or {})
    for name in out.keys() - {port.name for port in outputs}:
        raise Error(Error.INVALID_ARGUMENT, "outputs", f"`%{name}` is no output")
    results, targets = {}, []
    for port in outputs:
        shape = _shape(port, known)
        if port.name not in results:
            results[port.name] = out[port.name] if port.name in out else _arrays.empty(port, shape)
        array = _arrays.Array(port, results[port.name])
        if port.name in out and getattr(results[port.name], "ctypes", None) is not None:
            _check_writable(port, results[port.name], array)
        targets.append((array, shape))
    sources = [(array, _shape(array.port, known)) for array in bound]
    (args.inputs, kept), args.input_count = _arrays.tensors(sources), len(sources)
    (args.outputs, kept_out), args.output_count = _arrays.tensors(targets), len(targets)
    if hasattr(args, "symbols"):
        args.symbols, args.symbol_count, names = _abi.symbols(given)
    call(function, args)
    del kept, kept_out
    return results


def _check_writable(port, given, array):
    if array.kept is not given or not given.flags.writeable:
        message = f"the array to write for `{port}` must be contiguous, writable and of that type"
        raise Error(Error.INVALID_ARGUMENT, "outputs", message)


__all__ = ["Backend", "Decision", "Module", "Plan", "Port", "Prepared", "Report", "Segment", "Session", "Signature"]
