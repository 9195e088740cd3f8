"""`torch.compile`: a pass of Inductor that replaces block-scaled products and what follows them by kernels.

    torch.compile(model, backend="fourfold")

or, with other passes of one's own,

    torch._inductor.config.post_grad_custom_pre_pass = fourfold.torch.inductor_pass()

From each product, the pass grows a region along elementwise ops. It takes the largest region with one result that
becomes one kernel, by the decisions of `Backend.plan`. Inductor compiles the rest.
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
from ._translate import Program, Unsupported, is_item, is_root, translate

# The number of ops that a region may have.
LIMIT = 64


class InductorPass(CustomGraphPass):
    """The pass. `planned` has the program and the plan of each region that it took, `refused` why others were not."""

    def __init__(self, **options):
        self._options = {"device": "none", **options}
        self._backend = None
        self.planned, self.refused = [], []

    def uuid(self):
        """The key of compiled graphs in caches: this package's files and the target."""
        digest = hashlib.sha256(repr((sorted(self._options.items()), self._target())).encode())
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
        for node in list(graph.nodes):
            if is_root(node):
                self._take(graph, node)
        graph.eliminate_dead_code()

    def _take(self, graph, root):
        best = None
        for region in regions(graph, root):
            for whole in (True, False):
                try:
                    program, text, outputs = write(region, whole)
                    plan = self._plans().plan(text)
                except (Unsupported, Error) as refused:
                    self.refused.append((str(root), str(refused)))
                    continue
                if is_one_kernel(plan):
                    best = (region, program, text, plan, outputs)
                    break
                self.refused.append((str(root), plan.explain()))
        if best is not None:
            replace(graph, *best[:3], len(best[4]))
            self.planned.append((best[2], best[3]))


def regions(graph, root):
    """Regions of growing size, each a list of nodes in order, whose last node has the only result."""
    members, outside = [root], set()
    if closed(members):
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


def write(region, whole):
    """The program of a region, its text, and the names of its outputs."""
    program = Program(whole)
    for member in region:
        last = translate(program, member)
    outputs = (last,) if isinstance(last, str) else last
    text = program.text(outputs)
    check_symbols(text)
    return program, text, outputs


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


def replace(graph, region, program, text, output_count):
    """Replaces a region by a call of the op `segment`."""
    last = region[-1]
    with graph.inserting_before(last):
        call = graph.call_function(ops.segment.default, (text, program.inputs))
        call.meta["val"] = ops.segment.default(text, [node.meta["val"] for node in program.inputs])
        if output_count == 1:
            item = graph.call_function(operator.getitem, (call, 0))
            item.meta["val"] = call.meta["val"][0]
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
