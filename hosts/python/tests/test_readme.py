"""Runs the examples of the README."""

import contextlib
import io
import pathlib
import re

import pytest

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README.read_text(), re.DOTALL)


def test_there_are_examples():
    assert len(EXAMPLES) == 2


@pytest.mark.parametrize("place", range(len(EXAMPLES)))
def test_example(place):
    code, expected = EXAMPLES[place]
    if "torch" in code:
        pytest.importorskip("torch")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, README.name, "exec"), {})
    assert out.getvalue() == expected
