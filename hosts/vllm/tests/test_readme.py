"""Runs the example of the README with a stand-in for vLLM."""

import contextlib
import io
import pathlib
import re

import standin

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"


def test_example():
    ((code, expected),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README.read_text(), re.DOTALL)
    standin.install()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, README.name, "exec"), {})
    assert out.getvalue() == expected
