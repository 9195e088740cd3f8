"""Tests of EPContext models."""

import pathlib
import tempfile

import numpy as np
import onnx
from blake3 import blake3
from onnx import TensorProto as T

from host import ROWS, fails, feed_forward, session, whole
from models import value


def context():
    """EPContext: written, loaded, equal; refused when its version, its content or its file is another."""
    rng = np.random.default_rng(10)
    model, reference = feed_forward(rng)
    for embed in ("0", "1"):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            source, written = folder / "model.onnx", folder / "context.onnx"
            source.write_bytes(model)
            entries = {"ep__context_enable": "1", "ep__context_embed_mode": embed}
            first = session(str(source), ep__context_file_path=str(written), **entries)
            saved = onnx.load(written)
            [node] = saved.graph.node
            assert node.op_type == "EPContext", node.op_type
            source.unlink()
            second = session(str(written))
            for rows in ROWS:
                x = whole(rng, rows, 32)
                [a], [b] = first.run(None, {"x": x}), second.run(None, {"x": x})
                assert np.array_equal(a, reference(x)) and np.array_equal(a, b)

            def altered(name, change):
                copy = onnx.load(written)
                [node] = copy.graph.node
                [attribute] = [it for it in node.attribute if it.name == name]
                attribute.s = change(attribute.s)
                onnx.save(copy, folder / "altered.onnx")
                return str(folder / "altered.onnx")

            other = altered("ep_sdk_version", lambda text: text.replace(b"context 1", b"context 9"))
            fails(lambda: session(other), "context 9", "context 1", "compile the original model again")
            if embed == "1":
                other = altered("ep_cache_context", lambda text: text[:-1] + bytes([text[-1] ^ 1]))
                fails(lambda: session(other), "has changed")
            else:
                other = altered("ep_cache_context", lambda text: b"../" + text)
                fails(lambda: session(other), "is not a file in the folder")
                [content] = folder.glob("*.fourfold")
                content.write_bytes(content.read_bytes()[:-7])
                fails(lambda: session(str(written)), "has changed")
                content.unlink()
                fails(lambda: session(str(written)), "cannot read", content.name)


def context_file():
    """The file of a context is replaced as a whole, and a write that fails leaves nothing behind."""
    model, _ = feed_forward(np.random.default_rng(11))
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "model.onnx").write_bytes(model)

        def write():
            (folder / "context.onnx").unlink(missing_ok=True)
            entries = {"ep__context_enable": "1", "ep__context_file_path": str(folder / "context.onnx")}
            session(str(folder / "model.onnx"), **entries)

        write()
        [content] = folder.glob("*.fourfold")
        whole_text = content.read_bytes()
        content.write_bytes(b"old")
        with content.open("rb") as reader:
            write()
            assert reader.read() == b"old" and content.read_bytes() == whole_text
        content.unlink()
        content.mkdir()
        fails(write, content.name, "is not a regular file")
        assert sorted(path.name for path in folder.iterdir()) == sorted(["model.onnx", content.name])


def hostile_context():
    """Contexts that somebody else wrote, with a right hash: an error or a right refusal, never a crash."""
    rng = np.random.default_rng(17)
    model, _ = feed_forward(rng)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "model.onnx").write_bytes(model)
        entries = {"ep__context_enable": "1", "ep__context_embed_mode": "1"}
        session(str(folder / "model.onnx"), ep__context_file_path=str(folder / "context.onnx"), **entries)
        saved = onnx.load(folder / "context.onnx")

        def load(content):
            copy = onnx.ModelProto()
            copy.CopyFrom(saved)
            attributes = {attribute.name: attribute for attribute in copy.graph.node[0].attribute}
            attributes["ep_cache_context"].s, attributes["notes"].s = content, blake3(content).hexdigest().encode()
            return session(copy.SerializeToString())

        [content] = [it.s for it in saved.graph.node[0].attribute if it.name == "ep_cache_context"]
        x = whole(rng, 3, 32)
        assert load(content).run(None, {"x": x})[0].shape == (3, 80)
        fails(lambda: load(b""), "graph")
        fails(lambda: load(rng.bytes(999)), "ONNX")
        fails(lambda: load(content[: len(content) // 2]), "ONNX")

        def changed(change):
            region = onnx.ModelProto()
            region.ParseFromString(content)
            change(region.graph)
            return region.SerializeToString()

        def f16_output(graph):
            graph.output[0].type.tensor_type.elem_type = T.FLOAT16

        def bf16_input(graph):
            graph.input[0].type.tensor_type.elem_type = T.BFLOAT16

        def no_output(graph):
            del graph.output[:]

        def other_input(graph):
            graph.input[0].name = "i7"
            for node in graph.node:
                node.input[:] = ["i7" if name == "i0" else name for name in node.input]

        fails(lambda: load(changed(no_output)), "output")
        fails(lambda: load(changed(other_input)), "i7")
        fails(lambda: load(changed(f16_output)).run(None, {"x": x}), "output 0", "type")
        fails(lambda: load(changed(bf16_input)).run(None, {"x": x}), "input 0", "bf16")
        # The second of two nodes fails when the first is compiled.
        double = onnx.ModelProto()
        double.CopyFrom(saved)
        second = double.graph.node.add()
        second.CopyFrom(saved.graph.node[0])
        second.name, second.output[0] = "second", "other"
        double.graph.output.append(value("other", ["rows", 80]))
        assert len(session(double.SerializeToString()).run(None, {"x": x})) == 2
        [notes] = [it for it in second.attribute if it.name == "notes"]
        notes.s = b"another hash"
        fails(lambda: session(double.SerializeToString()), "`second`", "has changed")
        # Random changes of single bytes, most of them in weights.
        for at in rng.integers(0, len(content), 200):
            other = bytearray(content)
            other[at] ^= 1 << int(rng.integers(8))
            try:
                load(bytes(other)).run(None, {"x": x})
            except Exception as error:
                assert "panic" not in str(error), error
