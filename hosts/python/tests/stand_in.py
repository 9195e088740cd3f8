"""Runs prepared launches on the stand-in CUDA driver, whose device memory is host memory: the launches of
`fourfold.Module.prepare`, and those of the ops with a stand-in for libtorch. Without a GPU and without PyTorch.

    python3 stand_in.py FOLDER    # with the stand-ins, in LD_LIBRARY_PATH, too
"""

import ctypes as c
import os
import pathlib
import sys

import numpy as np

FOLDER = pathlib.Path(sys.argv[1])
os.environ["FOURFOLD_CUBLASLT"] = str(FOLDER / "libcublasLt.so.13")
driver = c.CDLL(str(FOLDER / "libcuda.so.1"), mode=c.RTLD_GLOBAL)
torch = c.CDLL(str(FOLDER / "libtorch_cpu.so"), mode=c.RTLD_GLOBAL)
c.CDLL(str(FOLDER / "libtorch_cuda.so"))

import ml_dtypes as ml

import fourfold
from fourfold import _abi

CHAIN = """fir 1
func @chain(%x: tensor<[M, 32], bf16>, param %w0: tensor<[48, 32], bf16>, param %w1: tensor<[40, 48], bf16>) {
  %h = mma %x, %w0 : tensor<[M, 48], bf16>
  %y = mma %h, %w1 : tensor<[M, 40], f32>
  return %y
}
"""
# The library has no product of f32 as bf16.
FALLBACK = """fir 1
func @f(%x: tensor<[16, 32], bf16>, %w: tensor<[48, 32], bf16>) {
  %h = mma %x, %w : tensor<[16, 48], f32>
  %y = mma %h, %h : tensor<[16, 16], bf16>
  return %y
}
"""
COUNTERS = {"memories": 0, "waits": 5, "allocations": 9}
driver.stand_in_get.restype = c.c_uint64
torch.stand_in_tensor.restype = torch.stand_in_string.restype = c.c_void_p
torch.stand_in_call.restype = c.c_char_p


def count(name):
    return driver.stand_in_get(COUNTERS[name])


def ok(status):
    assert status == 0, status


def new_stream():
    stream = c.c_void_p()
    ok(driver.cuStreamCreate(c.byref(stream), 1))
    return stream


def wait(stream):
    ok(driver.cuStreamSynchronize(stream))


def values(rng, *shape):
    """Small integers, whose sums are exact."""
    return rng.integers(-4, 5, shape).astype(np.float32)


def expected(x, w0, w1):
    return (x @ w0.T).astype(ml.bfloat16).astype(np.float32) @ w1.T


def start():
    ok(driver.cuInit(0))
    context = c.c_void_p()
    ok(driver.cuDevicePrimaryCtxRetain(c.byref(context), 0))
    ok(driver.cuCtxPushCurrent_v2(context))


def upload(array, dtype):
    """Device memory with an array's bytes."""
    data, address = array.astype(dtype).tobytes(), c.c_uint64()
    ok(driver.cuMemAlloc_v2(c.byref(address), c.c_size_t(max(1, len(data)))))
    c.memmove(address.value, data, len(data))
    return address.value


def floats(address, *shape):
    count = int(np.prod(shape))
    return np.frombuffer(c.string_at(address, 4 * count), np.float32).reshape(shape)


def prepared_launches(rng):
    """Launches with fresh addresses: several in flight, nothing waits or allocates."""
    module = fourfold.Backend().compile(CHAIN)
    report = module.report(M=37)
    assert report.is_capturable and report.workspace > 0, report
    w0, w1 = values(rng, 48, 32), values(rng, 40, 48)
    weights = [upload(w0, ml.bfloat16), upload(w1, ml.bfloat16)]
    inputs = [values(rng, 37, 32) for _ in range(3)]
    places = [upload(x, ml.bfloat16) for x in inputs]
    outputs = [upload(np.full((37, 40), np.nan), np.float32) for _ in inputs]
    stream = new_stream()
    prepared = module.prepare({"M": 37}, [places[0], *weights], [outputs[0]], stream=stream.value)
    before = count("allocations"), count("waits")
    for x, y in zip(places, outputs):
        prepared.launch([x, *weights], [y], stream=stream.value)
    assert (count("allocations"), count("waits")) == before
    assert np.isnan(floats(outputs[0], 37, 40)).all(), "launches do not wait"
    wait(stream)
    prepared.check()
    for x, y in zip(inputs, outputs):
        np.testing.assert_array_equal(floats(y, 37, 40), expected(x, w0, w1))
    try:
        prepared.launch([places[0] + 1, *weights], [outputs[0]], stream=stream.value)
    except fourfold.Error as error:
        assert error.reason == "pointer_alignment", error
    else:
        raise AssertionError("an address that is not aligned was taken")
    session = module.session(w0=w0.astype(ml.bfloat16), w1=w1.astype(ml.bfloat16))
    result = session(x=inputs[0].astype(ml.bfloat16))["y"]
    np.testing.assert_array_equal(result, expected(inputs[0], w0, w1))
    assert session.was_prepared


BF16 = 15


def tensor(array, dtype, number, index=0):
    """A CUDA tensor of the stand-in for libtorch."""
    sizes = (c.c_int64 * array.ndim)(*array.shape)
    made = torch.stand_in_tensor(sizes, c.c_int64(array.ndim), number, 1, index)
    data = array.astype(dtype).tobytes()
    c.memmove(data_of(made), data, len(data))
    return made


def data_of(made):
    address = c.c_void_p()
    ok(torch.aoti_torch_get_data_ptr(c.c_void_p(made), c.byref(address)))
    return address.value


def free(made):
    torch.aoti_torch_delete_tensor_object(c.c_void_p(made))


def segment(ir, made):
    """Calls `fourfold::segment` on CUDA. Takes the tensors, and returns the results or the message."""
    tensors = c.c_void_p()
    torch.torch_new_list_reserve_size(c.c_size_t(8), c.byref(tensors))
    for one in made:
        torch.torch_list_push_back(tensors, c.c_uint64(one))
    stack = (c.c_uint64 * 2)(torch.stand_in_string(ir.encode()), tensors.value)
    message = torch.stand_in_call(b"segment", b"CUDA", stack, c.c_uint64(2), c.c_uint64(1))
    if message:
        return message.decode()
    results, size, word = c.c_void_p(stack[0]), c.c_size_t(), c.c_uint64()
    torch.torch_list_size(results, c.byref(size))
    found = []
    for place in range(size.value):
        torch.torch_list_get_item(results, c.c_size_t(place), c.byref(word))
        found.append(word.value)
    torch.torch_delete_list(results)
    return found


def live():
    counts = (c.c_int64 * 4)()
    torch.stand_in_live(counts)
    return list(counts)


def chain(x, w0, w1):
    return segment(CHAIN, [tensor(array, ml.bfloat16, BF16) for array in (x, w0, w1)])


def replay(executable, stream, captured, wanted):
    c.memset(data_of(captured), 0xFF, wanted.nbytes)
    ok(driver.cuGraphLaunch(executable, stream))
    wait(stream)
    np.testing.assert_array_equal(floats(data_of(captured), *wanted.shape), wanted)


def op_launches(rng):
    """The op `segment` on torch's current stream."""
    register = _abi.library.fourfold_torch_register
    register.restype = c.c_char_p
    assert register() is None
    first, second, third = new_stream(), new_stream(), new_stream()
    w0, w1 = values(rng, 48, 32), values(rng, 40, 48)
    for stream in (first, second):
        torch.stand_in_stream(stream)
        for m in (1, 37, 200, 37):
            x = values(rng, m, 32)
            (y,) = chain(x, w0, w1)
            wait(stream)
            np.testing.assert_array_equal(floats(data_of(y), m, 40), expected(x, w0, w1))
            free(y)
    # Prepared for this stream and shape: a launch does not wait, and can be captured.
    x, before = values(rng, 37, 32), count("waits")
    (y,) = chain(x, w0, w1)
    assert count("waits") == before
    wait(second)
    np.testing.assert_array_equal(floats(data_of(y), 37, 40), expected(x, w0, w1))
    free(y)
    # A graph needs the memory of its capture for as long as it is launched.
    kept = [tensor(array, ml.bfloat16, BF16) for array in (x, w0, w1)]
    for made in kept:
        torch.stand_in_keep(c.c_void_p(made))
    ok(driver.cuStreamBeginCapture_v2(second, 2))
    (captured,) = segment(CHAIN, kept)
    refused = chain(values(rng, 38, 32), w0, w1)
    assert "was not run with these shapes before" in refused, refused
    graph, executable = c.c_void_p(), c.c_void_p()
    ok(driver.cuStreamEndCapture(second, c.byref(graph)))
    ok(driver.cuGraphInstantiateWithFlags(c.byref(executable), graph, c.c_ulonglong(0)))
    graph_result = expected(x, w0, w1)
    replay(executable, second, captured, graph_result)
    # A capture takes the program that another stream has prepared; that stream then prepares another one.
    torch.stand_in_stream(first)
    (y,) = chain(x, w0, w1)
    wait(first)
    free(y)
    torch.stand_in_stream(third)
    others = [tensor(array, ml.bfloat16, BF16) for array in (x, w0, w1)]
    for made in others:
        torch.stand_in_keep(c.c_void_p(made))
    memories = count("memories")
    ok(driver.cuStreamBeginCapture_v2(third, 2))
    (y,) = segment(CHAIN, others)
    other_graph, other = c.c_void_p(), c.c_void_p()
    ok(driver.cuStreamEndCapture(third, c.byref(other_graph)))
    ok(driver.cuGraphInstantiateWithFlags(c.byref(other), other_graph, c.c_ulonglong(0)))
    replay(other, third, y, graph_result)
    assert count("memories") == memories + 1, "only the output is new"
    for made in [*others, y]:
        free(made)
    torch.stand_in_stream(first)
    (y,) = chain(x, w0, w1)
    wait(first)
    np.testing.assert_array_equal(floats(data_of(y), 37, 40), graph_result)
    free(y)
    torch.stand_in_stream(second)
    # No rows: nothing is launched.
    (y,) = chain(values(rng, 0, 32), w0, w1)
    free(y)
    # More shapes than are kept: the oldest are freed, and nothing that runs is.
    for m in range(300, 600):
        x = values(rng, m, 32)
        (y,) = chain(x, w0, w1)
        wait(second)
        if m % 50 == 0:
            np.testing.assert_array_equal(floats(data_of(y), m, 40), expected(x, w0, w1))
        free(y)
    # The captured program was kept, with its workspace.
    replay(executable, second, captured, graph_result)
    for made in [*kept, captured]:
        free(made)
    memories = count("memories")
    for m in range(600, 900):
        (y,) = chain(values(rng, m, 32), w0, w1)
        wait(second)
        free(y)
    assert count("memories") == memories, "each new prepared program replaces an old one"
    message = chain(values(rng, 3, 16), w0, w1)
    assert message.startswith("fourfold::segment: ") and "[M, 32]" in message, message
    made = [tensor(values(rng, 3, 32), ml.bfloat16, BF16), tensor(w0, ml.bfloat16, BF16, 1)]
    message = segment(CHAIN, [*made, tensor(w1, ml.bfloat16, BF16)])
    assert "is on Cuda(1), others are on Cuda(0)" in message, message
    # An op without a kernel is refused instead of running on the CPU.
    message = segment(FALLBACK, [tensor(values(rng, rows, 32), ml.bfloat16, BF16) for rows in (16, 48)])
    assert "fallback_segment" in message, message


if __name__ == "__main__":
    start()
    generator = np.random.default_rng(0)
    prepared_launches(generator)
    op_launches(generator)
    print("live tensors, lists, strings, guards:", live())
