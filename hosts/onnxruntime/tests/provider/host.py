"""Sessions with the provider, and what they run."""

import sys

import numpy as np
import onnxruntime as ort

from models import Model, value

NAME = "FourfoldExecutionProvider"
LEVELS = [
    ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
]
ROWS = (0, 1, 3, 91)
# With `gpu` behind the name of the case, it runs on the first GPU.
DEVICE = {} if sys.argv[3:] == ["gpu"] else {"device": "none"}


def devices():
    found = [device for device in ort.get_ep_devices() if device.ep_name == NAME]
    assert found, "the library offers no device"
    return found


def session(model, level=LEVELS[-1], options=None, **entries):
    settings = ort.SessionOptions()
    settings.graph_optimization_level = level
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, text in entries.items():
        settings.add_session_config_entry(key.replace("__", "."), text)
    settings.add_provider_for_devices(devices(), {**DEVICE, **(options or {})})
    return ort.InferenceSession(model, settings)


def assigned(made):
    """The operators of each region of the provider, and those of the CPU provider."""
    ours, others = [], []
    for part in made.get_provider_graph_assignment_info():
        operators = sorted(node.op_type for node in part.get_nodes())
        if part.ep_name == NAME:
            ours.append(operators)
        else:
            others += operators
    return sorted(ours), sorted(others)


def fails(call, *words):
    try:
        call()
    except Exception as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} missing in: {error}"
        return
    raise AssertionError(f"no failure that names {words}")


def whole(rng, rows, k):
    """Activations of small whole numbers, which differ in each row."""
    return rng.integers(-3, 4, (rows, k)).astype(np.float32)


def feed_forward(rng, n=80, hidden=48, k=32):
    """Two NVFP4 linears with a bias and Relu between them."""
    model = Model()
    product, w1 = model.linear("up", "x", rng, hidden, k)
    bias = rng.integers(-9, 10, hidden)
    biased = model.node("Add", [product, model.constant("bias", bias)], "biased")
    positive = model.node("Relu", [biased], "positive")
    output, w2 = model.linear("down", positive, rng, n, hidden)
    built = model.build([value("x", ["rows", k])], [value(output, ["rows", n])])
    return built, lambda x: np.maximum(x.astype(np.float64) @ w1.T + bias, 0) @ w2.T
