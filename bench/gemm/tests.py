#!/usr/bin/env python3
"""Tests of the benchmark without a GPU. They need torch (any build) and a C compiler.

Run it with python3 bench/gemm/tests.py.
"""

import copy
import ctypes
import json
import math
import struct
import subprocess
import tempfile
import types
import unittest
import xml.etree.ElementTree
from pathlib import Path
from unittest import mock

import torch

import check
import device_code
import formats
import gate
import operands
import ours
import peers
import picture
import report
import session
import shapes
import timing

HERE = Path(__file__).resolve().parent
REQUIREMENTS = gate.load(HERE / "h200.require.json")
CPU = torch.device("cpu")


def compiled(folder, *options):
    """Compiles the stand-in for a kernel's library."""
    library = Path(folder) / f"fake{abs(hash(options))}.so"
    command = ["cc", "-shared", "-fPIC", "-O1", *options, "-o", library, HERE / "fake_kernel.c", "-lm"]
    subprocess.run(command, check=True)
    return library


class FakeStream:
    cuda_stream = 0

    def synchronize(self):
        pass


class FakeEvent:
    clock = 0.0

    def __init__(self, enable_timing=False):
        self.at = None

    def record(self, stream=None):
        self.at = FakeEvent.clock

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return end.at - self.at


class FakeGraph:
    """Repeats the captured launches, and advances the clock by 24 microseconds."""

    def __init__(self, launch, sets, calls):
        self.launch, self.sets, self.calls = launch, sets, calls

    def replay(self):
        for index in range(min(self.sets, self.calls)):
            self.launch(index)
        FakeEvent.clock += 0.024

    def reset(self):
        self.launch = None


def without_gpu():
    """Replaces every part of torch.cuda that the benchmark uses with a host version."""
    properties = types.SimpleNamespace(
        name="NVIDIA H200 (fake)", multi_processor_count=132, L2_cache_size=60 << 20, major=9, minor=0, uuid="0"
    )
    replaced = {
        "torch.cuda.current_device": lambda: 0,
        "torch.device": lambda *arguments: CPU,
        "torch.cuda.get_device_properties": lambda device: properties,
        "torch.cuda.Stream": FakeStream,
        "torch.cuda.Event": FakeEvent,
        "torch.cuda.set_stream": lambda stream: None,
        "torch.cuda.current_stream": FakeStream,
        "torch.cuda.synchronize": lambda: None,
        "torch.cuda.empty_cache": lambda: None,
        "timing.capture": lambda launch, sets, calls, stream: FakeGraph(launch, sets, calls),
        "timing.clocks": lambda busy: {"sm_mhz": 1755.0},
        "session.driver_version": lambda: "000.00",
    }
    return [mock.patch(name, value) for name, value in replaced.items()]


class Operands(unittest.TestCase):
    def test_scales_lie_where_the_hardware_reads_them(self):
        for rows, groups in [(1, 1), (37, 6), (130, 5), (256, 8)]:
            scales = torch.randint(1, 127, (rows, groups), dtype=torch.uint8)
            blocked = operands.block_scales(scales)
            tiles = math.ceil(groups / 4)
            self.assertEqual(blocked.numel(), math.ceil(rows / 128) * tiles * 512)
            seen = 0
            for row in range(rows):
                for group in range(groups):
                    tile = row // 128 * tiles + group // 4
                    at = tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + group % 4
                    self.assertEqual(int(blocked[at]), int(scales[row, group]))
                    seen += int(blocked[at])
            self.assertEqual(seen, int(blocked.long().sum()), "padding is zero")

    def test_every_code_times_every_scale(self):
        def e4m3(code):
            exponent, mantissa = code >> 3, code & 7
            return math.ldexp(8 + mantissa, exponent - 10) if exponent else math.ldexp(mantissa, -9)

        codes = torch.tensor([[low | low + 1 << 4 for low in range(0, 16, 2)]] * 127, dtype=torch.uint8)
        scales = torch.arange(127, dtype=torch.uint8)[:, None]
        values = operands.dequantize(codes, scales)
        for row in range(127):
            expected = [value * e4m3(row) for value in operands.E2M1]
            self.assertEqual(values[row].double().tolist(), expected)
        self.assertTrue(torch.equal(operands.dequantize(codes, scales, torch.bfloat16).double(), values.double()))

    def test_long_rows_are_dequantized_in_parts(self):
        matrix = operands.Set.random(shapes.Shape(9, 8, 64), operands.TIMED, 3, CPU).a
        whole = operands.dequantize(matrix.codes, matrix.scales)
        with mock.patch("operands.max", lambda *values: 2, create=True):
            self.assertTrue(torch.equal(operands.dequantize(matrix.codes, matrix.scales), whole))

    def test_all_codes_and_scales_occur(self):
        matrix = operands.Set.random(shapes.Shape(256, 8, 512), operands.TIMED, 3, CPU).a
        self.assertEqual(matrix.codes.unique().numel(), 256)
        self.assertEqual(matrix.scales.unique().tolist(), list(range(0x28, 0x48)))
        values = torch.tensor([0x28, 0x47], dtype=torch.uint8).view(torch.float8_e4m3fn).float()
        self.assertEqual(values.tolist(), [0.25, 3.75])

    def test_operands_of_every_format_are_exact_in_sixteen_bits(self):
        for found in formats.FORMATS.values():
            rotation = operands.Rotation(shapes.Shape(37, 48, 512), CPU, of=found)
            for draws in [rotation[0], *(made for made, _ in rotation.checks())]:
                for matrix, kind in [(draws.a, found.a), (draws.b, found.b)]:
                    self.assertTrue(torch.equal(matrix.f16.to(torch.bfloat16).double(), matrix.f16.double()))
                    self.assertGreater(matrix.f16.unique().numel(), 5)
                    stored = matrix.data.numel() * matrix.data.element_size()
                    scales = matrix.scales.numel() if kind.scales else 0
                    self.assertEqual(stored + scales, kind.bytes(*matrix.f16.shape))
            exact, unit = next(rotation.checks())
            self.assertTrue(check.exact_sums(exact, unit))
            sums = exact.a.f16.double() @ exact.b.f16.double().t()
            self.assertTrue(torch.equal((sums / unit).round() * unit, sums))

    def test_the_values_of_mx_codes(self):
        codes = torch.tensor([[0x38, 0xB0] * 16, [0x57, 0x18] * 16], dtype=torch.uint8)
        scales = torch.tensor([[128], [125]], dtype=torch.uint8)
        values = operands.dequantize(codes, scales, kind=formats.MXFP8)
        self.assertEqual(values[:, :2].tolist(), [[2.0, -1.0], [3.75, 2.0**-6]])
        fours = torch.tensor([[0x7A] * 16], dtype=torch.uint8)
        found = operands.dequantize(fours, torch.tensor([[126]], dtype=torch.uint8), kind=formats.MXFP4)
        self.assertEqual(found[0, :2].tolist(), [-0.5, 3.0])

    def test_rotations_outgrow_the_cache(self):
        for size in (10_000, 8_000_000, 10_200_000, 29_000_000, 70_000_000, 600_000_000):
            count = operands.rotation_count(size, 60_000_000, 24)
            self.assertGreaterEqual(count, 4)
            self.assertGreater(count * size, 180_000_000)
            self.assertTrue(24 % count == 0 or count > 24)
        self.assertEqual(operands.rotation_count(29_000_000, 60_000_000, 24), 8)


class Check(unittest.TestCase):
    shape = shapes.Shape(5, 16, 256)

    def judged(self, change, dtype=torch.float16, exact=True, alpha=1.0):
        rotation = operands.Rotation(self.shape, CPU)
        found = rotation[0].a.f16.float() @ rotation[0].b.f16.float().t()
        output = change((found * alpha).to(dtype))
        judgement = check.Judgement(exact)
        check.judge(rotation, {"x": [output]}, {"x": judgement})
        return judgement

    def test_a_right_output_is_right(self):
        for dtype in check.ROUNDING:
            judgement = self.judged(lambda output: output, dtype)
            self.assertTrue(judgement.ok, judgement.record())
            self.assertEqual(judgement.elements, 5 * 16)

    def test_what_is_wrong_is_found(self):
        def one(value):
            def change(output):
                output[4, 15] = value(output[4, 15])
                return output

            return change

        for value in [lambda x: float("nan"), lambda x: float("inf"), lambda x: -x - 1, lambda x: x + 8]:
            judgement = self.judged(one(value))
            self.assertEqual((judgement.wrong, judgement.ok), (1, False))
            json.dumps(judgement.record(), allow_nan=False)

    def test_an_approximate_output_may_be_near(self):
        self.assertTrue(self.judged(lambda output: output * 1.03, exact=False).ok)
        self.assertFalse(self.judged(lambda output: output * 1.2, exact=False).ok)
        self.assertFalse(self.judged(lambda output: output * float("nan"), exact=False).ok)

    def test_bits(self):
        for shape in [self.shape, shapes.Shape(3, 8, 16384)]:
            exact, unit = next(operands.Rotation(shape, CPU).checks())
            self.assertTrue(check.exact_sums(exact, unit))
            sums = exact.a.f16.double() @ exact.b.f16.double().t()
            self.assertTrue(torch.equal((sums / unit).round() * unit, sums))
            for dtype in (torch.float16, torch.bfloat16, torch.float32):
                output = (sums * 0.5).float().to(dtype)
                self.assertTrue(check.bit_equal(exact, output, 0.5))
                output[2, 7] = torch.nextafter(output[2, 7], torch.tensor(1e9, dtype=dtype))
                self.assertFalse(check.bit_equal(exact, output, 0.5))
        timed = operands.Rotation(shapes.Shape(8, 8, 4096), CPU)[0]
        self.assertFalse(check.exact_sums(timed, 2.0**-12))

    def test_what_is_lost_of_large_sums_is_seen(self):
        for shape in [shapes.Shape(1, 96, 4096), shapes.Shape(3, 40, 14336), shapes.Shape(5, 24, 96)]:
            largest = operands.Rotation(shape, CPU).largest()
            self.assertTrue(check.exact_sums(largest, operands.CODE_UNIT))
            for matrix, rows in [(largest.a, shape.m), (largest.b, shape.n)]:
                self.assertEqual((matrix.codes.dtype, matrix.scales.dtype), (torch.uint8, torch.uint8))
                self.assertEqual(matrix.codes.shape, (rows, shape.k // 2))
                self.assertEqual(matrix.scales.shape, (rows, shape.k // 16))
            a, b = largest.a.f16.double(), largest.b.f16.double()
            groups = torch.einsum("mgi,ngi->mng", a.view(shape.m, -1, 16), b.view(shape.n, -1, 16))
            self.assertGreater(float(groups.max()), 500)
            self.assertLess(float(groups.min()), -500)
            sums = a @ b.t()
            self.assertLess(float(sums.abs().max()), 512)
            self.assertGreater(int((sums != 0).sum()), shape.m)
            output = sums.to(torch.float16)
            self.assertTrue(check.bit_equal(largest, output, 1.0))
            # The result if every group sum were rounded to 11 bits.
            rounded = groups.half().double().sum(2).half()
            self.assertFalse(check.bit_equal(largest, rounded, 1.0))


class Ours(unittest.TestCase):
    def test_structures_have_the_layout_of_the_interface(self):
        self.assertEqual(ctypes.sizeof(ours.Device), 8)
        self.assertEqual(ctypes.sizeof(ours.Extents), 16 * 8 + 8)
        self.assertEqual(ctypes.sizeof(ours.Requirements), 8 + 32 * 8 + 8 * 8)
        self.assertEqual(ctypes.sizeof(ours.Addresses), struct.calcsize("32PI8PI8PI0P"))
        self.assertEqual(ours.Addresses.scalars.offset, 32 * 8 + 8)
        self.assertEqual(ours.Addresses.outputs.offset, 32 * 8 + 8 + 8 * 8 + 8)

    def test_a_library_that_is_none(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(device_code.Unavailable, "no fourfold_abi_version"):
                other = Path(folder) / "other.so"
                subprocess.run(["cc", "-shared", "-o", other, "-x", "c", "/dev/null"], check=True)
                ours.Library(other)
            with self.assertRaisesRegex(device_code.Unavailable, "version 3 of the interface"):
                ours.Library(compiled(folder, "-Dfourfold_abi_version=real", "-include", self.version(folder)))
            with self.assertRaises(device_code.Unavailable):
                ours.Library(Path(folder) / "absent.so")

    @staticmethod
    def version(folder):
        header = Path(folder) / "version.h"
        header.write_text("#undef fourfold_abi_version\nunsigned fourfold_abi_version(void) { return 3; }\n")
        header.write_text(header.read_text() + "#define fourfold_abi_version real\n")
        return str(header)

    def test_the_command_line_is_asked_and_understood(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "fourfold"
            answer = {"kernels": [{"error": None, "files": ["/k/a.cu", "/k/a.so", "/k/a.log"]}]}
            seen = Path(folder) / "seen"
            asked = Path(folder) / "asked"
            program.write_text(f"#!/bin/sh\ncp \"$2\" {seen}\necho \"$*\" > {asked}\necho '{json.dumps(answer)}'\n")
            program.chmod(0o755)
            built = ours.compile_library(str(program), "sm_90a", formats.DEFAULT, "bf16", Path(folder) / "out")
            self.assertEqual(built, "/k/a.so")
            self.assertIn("tensor<[M, N], bf16>", seen.read_text())
            self.assertRegex(asked.read_text(), "--target sm_90a .*--dump")
            answer["kernels"][0]["error"] = {"code": "no_nvcc", "message": "there is none"}
            program.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\nexit 3\n")
            with self.assertRaisesRegex(device_code.Unavailable, "no_nvcc"):
                ours.compile_library(str(program), "sm_90a", formats.DEFAULT, "f16", Path(folder) / "out")
            program.write_text("#!/bin/sh\necho '{\"kernels\": []}'\n")
            with self.assertRaisesRegex(device_code.Unavailable, "0 kernels"):
                ours.compile_library(str(program), "sm_90a", formats.DEFAULT, "f16", Path(folder) / "out")


class DeviceCode(unittest.TestCase):
    def test_the_host_decodes_as_the_gpu_will(self):
        try:
            nvcc = device_code.find_nvcc()
        except device_code.Unavailable:
            self.skipTest("no nvcc")
        with tempfile.TemporaryDirectory() as folder:
            code = device_code.build(nvcc, "sm_90a", Path(folder))
            for row, group, tiles in [(0, 0, 1), (1, 3, 2), (33, 4, 2), (127, 7, 2), (130, 5, 2), (300, 9, 3)]:
                tile = row // 128 * tiles + group // 4
                expected = tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + group % 4
                self.assertEqual(code.library.gemm_scale_offset(row, group, tiles), expected)
            for scale in range(127):
                for word in (0x76543210, 0xFEDCBA98, 0x80818283):
                    values = torch.empty(8, dtype=torch.float16)
                    code.library.gemm_decode(word, scale, values.data_ptr())
                    codes = torch.tensor([list(struct.pack("<I", word)) * 2], dtype=torch.uint8)
                    expected = operands.dequantize(codes, torch.tensor([[scale]], dtype=torch.uint8))[0, :8]
                    self.assertTrue(torch.equal(values.view(torch.int16), expected.view(torch.int16)))


def chosen(folder, **changes):
    """Returns options as the command line would."""
    values = {
        "shapes": [shapes.Shape(3, 16, 64), shapes.Shape(130, 24, 96)],
        "peers": ["ours", "cublas_f16", "cublas_bf16", "dequantize_cublas", "humming"],
        "library": None,
        "fourfold": None,
        "target": "sm_90a",
        "nvcc": "/nonexistent",
        "format": formats.DEFAULT,
        "build": Path(folder),
        "output": "f32",
        "replays": 3,
        "warm_up_s": 0.0,
        "calls": 4,
    }
    return types.SimpleNamespace(**{**values, **changes})


class Session(unittest.TestCase):
    """A whole run on the host: the kernels are stand-ins, the arithmetic is real."""

    def run_one(self, folder, fault=(), **changes):
        library = compiled(folder, *fault)
        code = types.SimpleNamespace(
            dequantize=lambda matrix, values: values.copy_(matrix.f16),
        )
        said = []
        patches = [
            *without_gpu(),
            mock.patch.object(session.Session, "build_code", lambda self: code),
            mock.patch("session.ROOF", shapes.Shape(16, 16, 64)),
            mock.patch("session.CACHE_BYTES", 1000),
        ]
        for patch in patches:
            patch.start()
        try:
            options = chosen(folder, library=[str(library)], **changes)
            with mock.patch("operands.rotation_count", lambda size, cache, calls: 4):
                run = session.Session(options, said.append)
                result = {"environment": run.environment()}
                result["columns"], result["missing"] = run.columns()
                with mock.patch.object(session.Session, "bandwidths", lambda self: {"copy_tb_per_s": 4.2}):
                    result["ceilings"] = run.ceilings()
                result["shapes"] = [run.measure(shape, result["ceilings"]) for shape in options.shapes]
        finally:
            for patch in patches:
                patch.stop()
        return result, said

    def test_a_run(self):
        with tempfile.TemporaryDirectory() as folder:
            result, _ = self.run_one(folder)
        names = [column["name"] for column in result["columns"]]
        self.assertEqual(names, ["ours", "cublas_f16", "cublas_bf16", "dequantize_cublas"])
        self.assertIn("humming", result["missing"])
        for row in result["shapes"]:
            for name in names:
                peer = row["peers"][name]
                self.assertTrue(peer["check"]["ok"], (name, peer))
                self.assertEqual(peer["check"]["outputs"], 4)
                self.assertEqual(peer["check"]["elements"], 4 * row["m"] * row["n"])
                self.assertAlmostEqual(peer["median_us"], 6.0, places=3)
                self.assertEqual(len(peer["replays_us"]), 3)
            self.assertIs(row["peers"]["ours"]["check"]["bit_equal"], True)
            self.assertIsNone(row["peers"]["humming"]["median_us"])
        self.assertFalse(gate.failed(gate.judge(result["shapes"]), result["shapes"]))
        json.dumps(result, allow_nan=False)

    def test_runs_of_other_formats(self):
        for name, found in formats.FORMATS.items():
            with tempfile.TemporaryDirectory() as folder:
                result, _ = self.run_one(folder, fault=[f"-D{name.upper()}"], format=found)
            has_nvfp4 = found.b == formats.NVFP4
            self.assertEqual("dequantize_cublas" in result["missing"], not has_nvfp4, name)
            for row in result["shapes"]:
                m, n, k = row["m"], row["n"], row["k"]
                self.assertEqual(row["bytes"], found.a.bytes(m, k) + found.b.bytes(n, k) + 4 * m * n)
                for peer in ["ours", "cublas_f16", "cublas_bf16", *(["dequantize_cublas"] if has_nvfp4 else [])]:
                    self.assertTrue(row["peers"][peer]["check"]["ok"], (name, peer, row["peers"][peer]))
                self.assertIs(row["peers"]["ours"]["check"]["bit_equal"], True)

    def test_a_kernel_of_another_format_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            result, _ = self.run_one(folder, fault=["-DW4A16"], peers=["ours"])
            for row in result["shapes"]:
                self.assertIn("expected one of NVFP4", row["peers"]["ours"]["reason"])
            result, _ = self.run_one(folder, fault=["-DW4A8"], peers=["ours"], shapes=[shapes.Shape(3, 16, 256)])
            for row in result["shapes"]:
                self.assertIn("the scales of A has", row["peers"]["ours"]["reason"])

    def test_a_wrong_element_fails_the_run(self):
        with tempfile.TemporaryDirectory() as folder:
            result, said = self.run_one(folder, fault=["-DFAULT=64.0f"], peers=["ours", "cublas_f16"])
        for row in result["shapes"]:
            self.assertEqual(row["peers"]["ours"]["check"]["wrong"], 4)
            self.assertIs(row["peers"]["ours"]["check"]["bit_equal"], False)
        self.assertTrue(gate.failed(gate.judge(result["shapes"]), result["shapes"]))
        self.assertTrue(any("outputs are wrong" in text for text in said))

    def test_a_wrong_bit_fails_the_run(self):
        with tempfile.TemporaryDirectory() as folder:
            result, _ = self.run_one(folder, fault=["-DFAULT=0.03125f"], peers=["ours"])
        self.assertTrue(all(row["peers"]["ours"]["check"]["bit_equal"] is False for row in result["shapes"]))
        self.assertTrue(gate.failed(gate.judge(result["shapes"]), result["shapes"]))

    def test_a_kernel_of_another_type_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            result, _ = self.run_one(folder, output="f16", peers=["ours"])
        for row in result["shapes"]:
            self.assertIn("check type and layout", row["peers"]["ours"]["reason"])
        self.assertTrue(gate.failed(gate.judge(result["shapes"]), result["shapes"]))
        self.assertEqual(gate.judge(result["shapes"])["correctness"]["outcome"], gate.UNKNOWN)


TIMES = {
    (128, 7168, 16384): (45, 68.5, 68.8, 120, 33.7, 53.8),
    (128, 4096, 7168): (14, 23.0, 21.5, 40, 13.1, 21.7),
    (128, 7168, 2048): (8.5, 10.3, 10.3, 22, 7.6, 15.9),
    (1, 8192, 8192): (11.5, 37.9, 33.2, 80, 18.8, 18.6),
    (16, 8192, 8192): (11.6, 33.8, 33.7, 81, 19.0, 20.5),
    (1, 28672, 4096): (20.2, 55.3, 54.8, 130, 29.1, 28.3),
    (64, 8192, 8192): (18.0, 35.3, 35.2, 82, 22.1, 27.6),
    (512, 8192, 8192): (84.0, 81.3, 84.4, 126, 51.1, 99.3),
    (4096, 4096, 4096): (174.0, 173.1, 181.0, 195, 105.6, 188.0),
    (8192, 8192, 8192): (1480.0, 1548.5, 1488.8, 1630, 994.3, 1519.0),
}


def example():
    """Returns a result in the form that a run writes, with invented figures for Fourfold."""
    names = ["ours", "cublas_f16", "cublas_bf16", "dequantize_cublas", "fp8", "humming"]
    labels = ["Fourfold", "cuBLAS f16", "cuBLAS bf16", "dequantize + cuBLAS f16", "FP8 tensorwise (approximate)"]
    labels.append("Humming W4A16")
    rows = []
    for (m, n, k), times in TIMES.items():
        shape = shapes.Shape(m, n, k)
        found = {}
        for name, time in zip(names, times, strict=True):
            right = {"ok": True, "elements": 10, "wrong": 0, "bit_equal": True if name == "ours" else None}
            found[name] = {"median_us": time, "rival": name not in ("ours", "fp8"), "check": right}
        rows.append(
            {
                **{"m": m, "n": n, "k": k, "group": shape.group, "peers": found},
                "reference_us": shape.reference_us(),
                "measured_reference_us": shape.reference_us(2, 4.4e6, 740e6),
            }
        )
    columns = [
        {"name": name, "label": label, "exact": name != "fp8", "rival": name not in ("ours", "fp8")}
        for name, label in zip(names, labels, strict=True)
    ]
    return {
        "version": 2,
        "command": "python3 bench/gemm/run.py --json gemm.json",
        "date": "2026-11-22T00:00:00+00:00",
        "output": "f16",
        "protocol": {"calls_per_graph": 24, "replays": 11, "warm_up_s": 0.2},
        "environment": {"gpu": "H200 <x>", "multiprocessors": 132, "driver": "1", "torch": "2", "cuda": "13.0"},
        "ceilings": {"copy_tb_per_s": 4.27, "read_tb_per_s": None, "cublas_f16_8192_tflops": 710.0},
        "columns": columns,
        "missing": {"other": "not <there>"},
        "shapes": rows,
        "verdict": gate.judge(rows, REQUIREMENTS),
    }


class Gate(unittest.TestCase):
    def test_reference_times_are_those_of_the_notes(self):
        for shape, expected in [((128, 7168, 16384), 38.1), ((1, 8192, 8192), 8.8), ((64, 8192, 8192), 10.9)]:
            self.assertAlmostEqual(shapes.Shape(*shape).reference_us(), expected, delta=0.05)

    def test_lines(self):
        result = example()
        verdict = result["verdict"]
        self.assertEqual(verdict["correctness"]["outcome"], "pass")
        self.assertEqual([line["outcome"] for line in verdict["gate"]], ["pass"] * 4)
        # 17.5 us, 76 %, 0.968.
        self.assertEqual([line["outcome"] for line in verdict["stretch"]], ["FAIL", "pass", "FAIL", "FAIL"])
        self.assertFalse(gate.failed(verdict, result["shapes"]))

    def test_each_line_can_fail(self):
        slower = {0: ((128, 7168, 16384), 53.0), 1: ((128, 7168, 2048), 10.4), 2: ((1, 8192, 8192), 11.8)}
        slower[3] = ((8192, 8192, 8192), 1570.0)
        for index, (shape, time) in slower.items():
            rows = copy.deepcopy(example()["shapes"])
            row = next(row for row in rows if (row["m"], row["n"], row["k"]) == shape)
            row["peers"]["ours"]["median_us"] = time
            verdict = gate.judge(rows, REQUIREMENTS)
            self.assertEqual(verdict["gate"][index]["outcome"], "FAIL", verdict["gate"][index])
            self.assertTrue(gate.failed(verdict, rows))

    def test_without_requirements_only_outputs_are_judged(self):
        rows = copy.deepcopy(example()["shapes"])
        for row in rows:
            row["peers"]["ours"]["median_us"] = 1e6
        verdict = gate.judge(rows)
        self.assertEqual((verdict["gate"], verdict["stretch"]), ([], []))
        self.assertFalse(gate.failed(verdict, rows))
        rows[0]["peers"]["ours"]["check"]["ok"] = False
        self.assertTrue(gate.failed(gate.judge(rows), rows))

    def test_what_was_not_measured_proves_nothing(self):
        rows = example()["shapes"][:2]
        verdict = gate.judge(rows, REQUIREMENTS)
        self.assertEqual(verdict["correctness"]["outcome"], "pass")
        self.assertEqual([line["outcome"] for line in verdict["gate"]], [gate.UNKNOWN] * 4)
        self.assertEqual(gate.judge([])["correctness"]["outcome"], gate.UNKNOWN)

    def test_a_wrong_file_of_requirements_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "require.json"
            for text, said in [
                ("", "require.json"),
                ("[]", "expected an object"),
                ('{"gate": [{"group": "x"}]}', "group 'x'"),
                ('{"gate": [{"group": "large", "figure": "x"}]}', "figure 'x'"),
                ('{"gate": [{"group": "large", "figure": "speedup"}]}', "at_least and at_most"),
            ]:
                file.write_text(text)
                with self.assertRaisesRegex(gate.BadRequirements, said):
                    gate.load(file)
            with self.assertRaises(gate.BadRequirements):
                gate.load(Path(folder) / "absent.json")

    def test_only_exact_right_peers_count(self):
        row = example()["shapes"][0]
        self.assertEqual(gate.best_rival(row), ("humming", 53.8))
        row["peers"]["humming"]["check"]["ok"] = False
        self.assertEqual(gate.best_rival(row), ("cublas_f16", 68.5))

    def test_shapes_are_named(self):
        self.assertEqual(shapes.parse_shapes("contest 1,8,32;contest")[-1], shapes.Shape(1, 8, 32))
        self.assertEqual(len(shapes.parse_shapes("contest decode large")), 10)
        for wrong in ("", "1,2", "0,8,32", "1,8,31", "x"):
            with self.assertRaises(ValueError):
                shapes.parse_shapes(wrong)


class Report(unittest.TestCase):
    def test_the_table_is_short(self):
        # 12 lines of figures, and the lines of the requirements.
        lines = report.table(example()).splitlines()
        self.assertLessEqual(len(lines), 25)
        self.assertIn("53.8*", next(line for line in lines if line.startswith("128,7168,16384")))

    def test_the_page_is_whole_and_asks_for_nothing(self):
        page = report.html(example())
        self.assertNotIn("http", page.replace('xmlns="http://www.w3.org/2000/svg"', ""))
        self.assertIn("H200 &lt;x&gt;", page)
        xml.etree.ElementTree.fromstring(picture.svg(example()))
        self.assertIn("Requirements", page)

    def test_without_requirements_the_page_has_ratios_only(self):
        result = example()
        result["verdict"] = gate.judge(result["shapes"])
        page, lines = report.html(result), report.table(result)
        self.assertNotIn("Requirements", page)
        for text in (page, lines):
            self.assertNotIn("FAIL", text.replace(".FAIL", ""))
            self.assertIn("every output is right" if text is lines else "compared with the exact sum", text)

    def test_the_committed_chart_is_drawn_from_the_committed_figures(self):
        result = json.loads((HERE / "h200.json").read_text())
        drawn = picture.standalone(result)
        self.assertNotIn("var(", drawn)
        xml.etree.ElementTree.fromstring(drawn)
        self.assertEqual(drawn, (HERE / "../../docs/images/gemm-h200.svg").read_text(), "see picture.py")
        self.assertEqual(result["verdict"], gate.judge(result["shapes"]))
        report.html(result)
        for row in result["shapes"]:
            shape = shapes.Shape(row["m"], row["n"], row["k"])
            self.assertEqual((row["reference_us"], row["bytes"]), (shape.reference_us(), shape.bytes(2)))

    def test_a_clock_that_moved_is_shown(self):
        result = example()
        result["shapes"][0]["clocks"] = [{"sm_mhz": 1980.0}, {"sm_mhz": 1755.0}]
        result["shapes"][1]["clocks"] = [{"sm_mhz": 1770.0}, {"sm_mhz": 1755.0}]
        result["shapes"][2]["clocks"] = [None, {"sm_mhz": None}]
        text = report.table(result)
        self.assertIn("128,7168,16384!", text)
        self.assertEqual(text.count("!"), 2)
        self.assertIn("1755 to 1980 MHz", text)

    def test_gaps_are_shown(self):
        result = example()
        for row in result["shapes"]:
            for name in ("ours", "humming", "cublas_f16"):
                row["peers"][name] = {"median_us": None, "reason": "why"}
        for name in ("cublas_bf16", "dequantize_cublas"):
            result["shapes"][0]["peers"][name] = {"median_us": None}
        result["error"] = "lost"
        result["verdict"] = gate.judge(result["shapes"], REQUIREMENTS)
        self.assertIn("stopped: lost", report.table(result))
        self.assertIn("failed: ours at 128,7168,16384: why, and 9 more", report.table(result))
        xml.etree.ElementTree.fromstring(picture.svg(result))
        self.assertIn("not measured", report.html(result))
        result["shapes"] = []
        result["verdict"] = gate.judge([], REQUIREMENTS)
        report.table(result)
        report.html(result)


class Timing(unittest.TestCase):
    def test_statistics(self):
        found = timing.summary([5.0, 1.0, 4.0, 2.0, 3.0, 9.0, 8.0])
        self.assertEqual(found, {"median_us": 4.0, "min_us": 1.0, "p90_us": 9.0})

    def test_fp8_keeps_the_largest(self):
        values = operands.Set.random(shapes.Shape(16, 8, 64), operands.TIMED, 1, CPU).a.f16
        rounded, scale = peers.fp8(values)
        self.assertLess(float((rounded.float() * scale - values.float()).norm() / values.float().norm()), 0.04)


if __name__ == "__main__":
    unittest.main()
