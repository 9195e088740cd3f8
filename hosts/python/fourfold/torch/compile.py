"""`torch.compile`: a pass of Inductor that replaces block-scaled products and what follows them by kernels.

    torch.compile(model, backend="fourfold")

or, with other passes of one's own,

    torch._inductor.config.post_grad_custom_pre_pass = fourfold.torch.inductor_pass()

From each product, the pass grows a region along elementwise ops. It takes the largest region with one result that
becomes one kernel, by the decisions of `Backend.plan`. From each `fourfold::quantize` that is no part of such a region,
it grows a region backwards, along elementwise ops and the norm of a row. Inductor compiles the rest.
"""

import hashlib
import operator
import pathlib

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

from .. import _abi
from .._abi import Error
from .._backend import Backend
from .._types import Signature, solve
from ._ops import ops
from ._program import Program, Unsupported
from ._siblings import merge_siblings
from ._translate import BINARY, RESHAPES, UNARY, is_item, is_root, translate

# The number of ops that a region may have.
LIMIT = 64
VIEWS = (*RESHAPES, torch.ops.aten.permute.default, torch.ops.aten.view.dtype)


class InductorPass(CustomGraphPass):
    """The pass. `planned` has the program and the plan of each region that it took, `refused` why others were not.

    `many_rows` is the number of rows from which ops between a product and a quantization belong to the product's kernel
    [default: None, which means never].
    """

    # For 2,048 rows of a Llama 3 8B on an H100, a kernel that computes silu(gate) * up and quantizes takes 83 us. By
    # estimate, quantization alone takes 55 us, and exponentials and divisions make the gate's epilogue 30 us longer.
    many_rows = None

    def __init__(self, **options):
        self._options = {"device": "none", **options}
        # Without options, programs are planned for the GPU, whose kernels are then built.
        self._has_gpu = not options and torch.cuda.is_available()
        self._backend = None
        self.planned, self.refused = [], []
        self._builds = {}  # text: module

    def uuid(self):
        """The key of compiled graphs in caches: this package's files and the target."""
        digest = hashlib.sha256(repr((sorted(self._options.items()), self._target(), self.many_rows)).encode())
        for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
            digest.update(path.read_bytes())
        library = _abi.LIBRARY.stat()
        digest.update(repr((library.st_size, library.st_mtime_ns)).encode())
        return digest.hexdigest()

    def _target(self):
        return self._plans().target

    def _plans(self):
        if self._backend is None:
            options = dict(self._options)
            if "target" not in options and torch.cuda.is_available():
                # The target of the GPU.
                del options["device"]
            self._backend = Backend(**options)
        return self._backend

    def __call__(self, graph):
        merge(graph)
        # A kernel that multiplies and quantizes is best.
        self._take_products(graph, ends_quantized)
        # Where there is none, the kernel that quantizes computes ops between the two, or for many rows the product's.
        if self.many_rows is not None and has_many_rows(graph, self.many_rows):
            self._take_products(graph, has_epilogue)
        for node in list(graph.nodes):
            if is_quantize(node):
                self._take(graph, node, rows_before(graph, node), is_one_launch)
        graph.eliminate_dead_code()
        merge_siblings(graph, lambda root: not any(map(has_epilogue, regions(graph, root))))
        graph.eliminate_dead_code()
        self._take_products(graph, lambda region: not ends_quantized(region))

    def _take_products(self, graph, is_wanted):
        """Replaces products, each with the largest region for which `is_wanted` holds."""
        for node in list(graph.nodes):
            if is_root(node):
                self._take(graph, node, filter(is_wanted, regions(graph, node)), is_one_kernel)
        graph.eliminate_dead_code()

    def _take(self, graph, root, candidates, is_taken):
        """Replaces the last of these regions that is taken."""
        best = None
        for region in candidates:
            for program in programs(region):
                try:
                    text, outputs = write(program, region)
                    plan = self._plans().plan(text)
                except (Unsupported, Error) as refused:
                    self.refused.append((str(root), str(refused)))
                    continue
                if is_taken(plan):
                    best = (region, program, text, plan, outputs)
                    break
                self.refused.append((str(root), plan.explain()))
        if best is not None:
            replace(graph, *best[:3], len(best[4]))
            self.planned.append((best[2], best[3]))
            self._build(best[2])

    def _build(self, text):
        """Starts to build a program's kernels, so that those of a model are built side by side, beside Inductor."""
        if not self._has_gpu or text in self._builds:
            return
        try:
            self._builds[text] = self._plans().compile(text, background=True)
        except Error:
            # The call of the program reports it.
            pass


def is_quantize(node):
    return node.op == "call_function" and node.target is ops.quantize.default


def merge(graph):
    """Merges equal quantizations, such as those of the common input of q, k and v, their results, and views."""
    known = {}
    for node in list(graph.nodes):
        if not (is_quantize(node) or is_item(node) or (node.op == "call_function" and node.target in VIEWS)):
            continue
        first = known.setdefault((node.target, repr((node.args, node.kwargs))), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def has_many_rows(graph, least):
    """True if all quantizations are of at least so many rows."""
    counts = [node.args[0].meta["val"].shape[0] for node in graph.nodes if is_quantize(node)]
    return bool(counts) and all(isinstance(count, int) and count >= least for count in counts)


def ends_quantized(region):
    return is_quantize(region[-1])


def has_epilogue(region):
    """True for a region with elementwise ops, and without quantization."""
    return not ends_quantized(region) and any(node.target in (*UNARY, *BINARY) for node in region)


def rows_before(graph, root):
    """Yields the quantization alone, then with every op that only it uses."""
    yield [root]
    rows = root.args[0].meta["val"].shape[0]
    if not isinstance(rows, int):
        return
    members = {root}
    order = list(graph.nodes)
    for node in reversed(order[: order.index(root)]):
        if not node.users or not all(user in members for user in node.users) or len(members) >= LIMIT:
            continue
        if is_item(node) or is_root(node) or is_quantize(node):
            continue
        try:
            translate(Program(rows=rows, is_rowwise=True), node)
        except Unsupported:
            continue
        members.add(node)
    if len(members) > 1:
        yield [node for node in order if node in members]


def programs(region):
    """Empty programs for a region, to be tried in this order."""
    if is_quantize(region[-1]) and not is_root(region[0]):
        rows = region[-1].args[0].meta["val"].shape[0]
        return [Program(rows=rows if isinstance(rows, int) else None, is_rowwise=True)]
    return [Program(whole) for whole in (True, False)]


def regions(graph, root):
    """Regions of growing size, each a list of nodes in order, whose last node has the only result."""
    members, outside = [root], set()
    yield list(members)
    behind = False
    for node in list(graph.nodes):
        if node is root:
            behind = True
            continue
        inputs = set(node.all_input_nodes)
        if not behind or not inputs & (outside | set(members)):
            continue
        if inputs & outside or not is_translatable(members, node):
            outside.add(node)
            continue
        members.append(node)
        if len(members) > LIMIT:
            return
        # A trailing conversion to a wider type would double the bytes that the kernel writes.
        if closed(members) and not is_widening(node):
            yield list(members)


def is_translatable(members, node):
    if is_item(node) or is_root(node):
        return False
    program = Program()
    try:
        for member in [*members, node]:
            translate(program, member)
    except Unsupported:
        return False
    return True


def is_widening(node):
    if node.target is not torch.ops.prims.convert_element_type.default:
        return False
    return node.meta["val"].dtype.itemsize > node.args[0].meta["val"].dtype.itemsize


def closed(members):
    """True if only the last member has users outside."""
    inside = set(members)
    return all(user in inside for member in members[:-1] for user in member.users)


def write(program, region):
    """Writes the program of a region. Returns its text, and the names of its outputs."""
    for member in region:
        last = translate(program, member)
    outputs = (last,) if isinstance(last, str) else last
    text = program.text(outputs)
    check_symbols(text)
    return text, outputs


def check_symbols(text):
    """Fails if the shapes of a call would not determine every symbol."""
    signature = Signature.parse(text)
    shapes = [None if ty.layout == "blocked" else [1] * len(ty.extents) for _, ty in signature.inputs]
    known = solve(signature.inputs, shapes)
    for name, ty in (*signature.inputs, *signature.outputs):
        if None in ty.shape(known):
            raise Unsupported(f"no input determines the extents of `%{name}: {ty}`")


def is_one_kernel(plan):
    """True for one kernel, beside which only views, constants and conversions of scales remain, on the device."""
    tiers = [segment.tier for segment in plan.segments]
    beside = ("swizzle_scales", "reshape", "constant")
    inside = all(
        decision.tier in ("kernel", "removed") or decision.name.split()[-1] in beside for decision in plan.decisions
    )
    return tiers.count("kernel") == 1 and "fallback" not in tiers and inside


def is_one_launch(plan):
    """True for one kernel of any kind, beside views."""
    return [segment.tier for segment in plan.segments if segment.name != "view"] in (["device"], ["kernel"])


def replace(graph, region, program, text, output_count):
    """Replaces a region by a call of the op `segment`."""
    last = region[-1]
    with graph.inserting_before(last):
        inputs = []
        for node, (_, ty) in zip(program.inputs, Signature.parse(text).inputs):
            value = node.meta["val"]
            if ty.layout is None and len(ty.extents) == 2 < value.dim():
                # The program has matrices.
                node = graph.call_function(torch.ops.aten.reshape.default, (node, [-1, value.shape[-1]]))
                node.meta["val"] = value.reshape(-1, value.shape[-1])
            inputs.append(node)
        call = graph.call_function(ops.segment.default, (text, inputs))
        call.meta["val"] = ops.segment.default(text, [node.meta["val"] for node in inputs])
        if output_count == 1:
            item = graph.call_function(operator.getitem, (call, 0))
            item.meta["val"] = call.meta["val"][0]
            shape = list(last.meta["val"].shape)
            if shape != list(item.meta["val"].shape):
                item = graph.call_function(torch.ops.aten.reshape.default, (item, shape))
                item.meta["val"] = call.meta["val"][0].reshape(shape)
    last.replace_all_uses_with(call if output_count > 1 else item)
    for node in reversed(region):
        graph.erase_node(node)


def backend(module, inputs, *, options=None, mode=None, target=None):
    """The backend `fourfold` of `torch.compile`: Inductor with the pass."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    patches = dict(options or {})
    if mode is not None:
        from torch._inductor import list_mode_options

        patches = list_mode_options(mode) | patches
    target = patches.pop("fourfold.target", target)
    own = InductorPass(**({"target": target} if target else {}))
    theirs = config.post_grad_custom_pre_pass
    if theirs is not None:
        raise RuntimeError("post_grad_custom_pre_pass is set: call fourfold.torch.inductor_pass() from it instead")
    return compile_fx(module, inputs, config_patches=patches | {"post_grad_custom_pre_pass": own})
