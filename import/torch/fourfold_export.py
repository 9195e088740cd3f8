"""Writes a torch.export graph as a folder that `fourfold import` reads.

    import torch
    from fourfold_export import save

    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("M")},), strict=False)
    save(program, "exported", dynamic_shapes=({0: "M"},))

The folder holds `graph.json` (the nodes, their arguments and types) and `weights.safetensors` (parameters, buffers and
constants). `torch.export.save` cannot write FP4 element types. Here FP4 weights of torchao stay what they are: packed
bytes, block scales and a per-tensor scale. Requires torch and safetensors.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

VERSION = 1


class Unsupported(Exception):
    """A graph holds something that the format cannot express."""


def save(program, folder, dynamic_shapes=None):
    """Writes `program`, a torch.export.ExportedProgram, to `folder`, which is created.

    `dynamic_shapes` names dynamic axes: one `{axis: name}` or None for each input, in order. Unnamed axes keep the
    names that torch gave them.

    Raises Unsupported, naming the node or parameter.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    writer = _Writer(program, dynamic_shapes or ())
    graph = writer.graph()
    save_file(writer.tensors, folder / "weights.safetensors")
    (folder / "graph.json").write_text(json.dumps(graph, indent=1) + "\n")


class _Writer:
    def __init__(self, program, dynamic_shapes):
        self.program = program
        self.tensors = {}
        self.symbols = {}
        self.dynamic_shapes = dynamic_shapes

    def graph(self):
        signature = self.program.graph_signature
        held = {}
        for names in (signature.inputs_to_parameters, signature.inputs_to_buffers):
            held.update(names)
        held.update(signature.inputs_to_lifted_tensor_constants)
        inputs, parameters, nodes, outputs = [], [], [], []
        for node in self.program.graph.nodes:
            if node.op == "placeholder" and node.name in held:
                parameters.append(self.parameter(node, held[node.name]))
            elif node.op == "placeholder":
                self.name_axes(node, len(inputs))
                inputs.append({"name": node.name, "type": self.type_of(node)})
            elif node.op == "call_function":
                nodes.append(self.node(node))
            elif node.op == "output":
                outputs = [self.argument(node, argument) for argument in node.args[0]]
            else:
                raise Unsupported(f"node {node.name}: {node.op}")
        return {
            "format": "fourfold.torch",
            "version": VERSION,
            "tensors": "weights.safetensors",
            "inputs": inputs,
            "parameters": parameters,
            "nodes": nodes,
            "outputs": outputs,
        }

    def name_axes(self, node, position):
        named = self.dynamic_shapes[position] if position < len(self.dynamic_shapes) else None
        for axis, name in (named or {}).items():
            extent = node.meta["val"].shape[axis]
            if isinstance(extent, torch.SymInt):
                self.symbols.setdefault(str(extent), str(name))

    def parameter(self, node, name):
        value = self.program.state_dict.get(name)
        if value is None:
            value = self.program.constants[name]
        if type(value) is torch.nn.Parameter:
            value = value.data
        kind = type(value).__name__
        if kind == "NVFP4Tensor":
            return {"name": node.name, "nvfp4": self.nvfp4(name, value)}
        if type(value) is not torch.Tensor:
            raise Unsupported(f"parameter {name}: {kind}")
        return {"name": node.name, "tensor": self.keep(name, value), "type": self.tensor_type(value)}

    def nvfp4(self, name, value):
        # A linear layer's weight has its own shape; its transpose shares the bytes.
        activation = None
        quantization = value.act_quant_kwargs
        if quantization is not None:
            scale = value.act_per_tensor_scale
            activation = {
                "dynamic": bool(quantization.use_dynamic_per_tensor_scale),
                "per_tensor_scale": None if scale is None else self.keep(f"{name}.act_per_tensor_scale", scale),
            }
        scale = value.per_tensor_scale
        return {
            "codes": self.keep(f"{name}.qdata", value.qdata.view(torch.uint8)),
            "scales": self.keep(f"{name}.scale", value.scale.view(torch.float8_e4m3fn)),
            "swizzled": bool(value.is_swizzled_scales),
            "per_tensor_scale": None if scale is None else self.keep(f"{name}.per_tensor_scale", scale),
            "activation": activation,
            "type": {"dtype": _dtype(value.orig_dtype), "shape": [int(extent) for extent in value.shape]},
        }

    def keep(self, name, value):
        if value.dtype == torch.int64:
            # Programs have integers of 32 bits.
            if value.numel() and (value.min() < -(2**31) or value.max() >= 2**31):
                raise Unsupported(f"tensor {name}: integers beyond 32 bits")
            value = value.int()
        self.tensors[name] = value.detach().clone().contiguous()
        return name

    def node(self, node):
        return {
            "name": node.name,
            "op": str(node.target),
            "args": [self.argument(node, argument) for argument in node.args],
            "kwargs": {key: self.argument(node, argument) for key, argument in node.kwargs.items()},
            "type": self.type_of(node),
        }

    def type_of(self, node):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            return self.tensor_type(value)
        if isinstance(value, (tuple, list)):
            return [self.tensor_type(item) if isinstance(item, torch.Tensor) else None for item in value]
        if isinstance(value, (int, torch.SymInt)):
            return {"extent": self.extent(value)}
        return None

    def tensor_type(self, value):
        return {"dtype": _dtype(value.dtype), "shape": [self.extent(extent) for extent in value.shape]}

    def extent(self, extent):
        if not isinstance(extent, torch.SymInt):
            return int(extent)
        factors = str(extent).split("*")
        return "*".join(self.symbols.get(factor, factor) for factor in factors)

    def argument(self, node, value):
        if isinstance(value, torch.fx.Node):
            return {"node": value.name}
        if isinstance(value, (list, tuple)):
            return [self.argument(node, item) for item in value]
        if isinstance(value, torch.dtype):
            return {"dtype": _dtype(value)}
        if isinstance(value, torch.SymInt):
            return {"extent": self.extent(value)}
        if isinstance(value, float) and value != value:
            return {"number": "nan"}
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            return {"number": "inf" if value > 0 else "-inf"}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            return str(value)
        raise Unsupported(f"node {node.name}: an argument of type {type(value).__name__}")


def _dtype(dtype):
    return str(dtype).removeprefix("torch.")
