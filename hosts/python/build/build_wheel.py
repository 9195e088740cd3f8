"""Builds the wheel with cargo: a PEP 517 backend without dependencies.

    pip install hosts/python
    pip install hosts/python --config-settings profile=dev    # builds in less time, plans more slowly
"""

import base64
import hashlib
import json
import os
import pathlib
import stat
import subprocess
import sys
import tomllib
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = f"{PROJECT['name']}-{PROJECT['version']}"
LIBRARY = "libfourfold_python.so"
# Dates of files in a wheel; the earliest that zip can store.
DATE = (1980, 1, 1, 0, 0, 0)


def _library(settings):
    """Builds the native library, and returns its path."""
    if not sys.platform.startswith("linux"):
        raise SystemExit("error: Fourfold runs on Linux only")
    profile = settings.get("profile", "release")
    command = ["cargo", "build", "--profile", profile, "--package", "fourfold-python", "--lib"]
    command += ["--manifest-path", str(ROOT / "Cargo.toml"), "--message-format", "json-render-diagnostics"]
    try:
        built = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError:
        raise SystemExit("error: cargo is not installed\nhelp: install Rust 1.95 or newer from https://rustup.rs")
    if built.returncode != 0:
        raise SystemExit(f"error: `{' '.join(command)}` failed; its messages are above")
    for line in reversed(built.stdout.splitlines()):
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message["target"]["name"] == "fourfold_python":
            return pathlib.Path(next(path for path in message["filenames"] if path.endswith(".so")))
    raise SystemExit("error: cargo built no library")


def _metadata():
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {PROJECT['name']}",
        f"Version: {PROJECT['version']}",
        f"Summary: {PROJECT['description']}",
        f"License-Expression: {PROJECT['license']}",
        f"Requires-Python: {PROJECT['requires-python']}",
    ]
    lines += [f"Requires-Dist: {requirement}" for requirement in PROJECT["dependencies"]]
    for extra, requirements in PROJECT["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {requirement}; extra == "{extra}"' for requirement in requirements]
    lines.append("Description-Content-Type: text/markdown")
    return "\n".join(lines) + "\n\n" + (ROOT / "README.md").read_text()


def _tag():
    return f"py3-none-linux_{os.uname().machine}"


def _dist_info():
    """The files of the wheel that describe it."""
    groups = ""
    for group, entries in PROJECT["entry-points"].items():
        groups += f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
    wheel = f"Wheel-Version: 1.0\nGenerator: build_wheel\nRoot-Is-Purelib: false\nTag: {_tag()}\n"
    return {"METADATA": _metadata(), "WHEEL": wheel, "entry_points.txt": groups}


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """Without this, pip would build the wheel to read its metadata."""
    name = f"{NAME}.dist-info"
    folder = pathlib.Path(metadata_directory) / name
    folder.mkdir()
    for file, text in _dist_info().items():
        (folder / file).write_text(text)
    return name


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = f"{NAME}-{_tag()}.whl"
    files = {}
    for path in sorted((ROOT / "fourfold").rglob("*.py")):
        files[path.relative_to(ROOT).as_posix()] = path.read_bytes()
    files[f"fourfold/{LIBRARY}"] = _library(config_settings or {}).read_bytes()
    return _write(pathlib.Path(wheel_directory) / name, files)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Puts the library into the source tree, and the source tree on the path."""
    (ROOT / "fourfold" / LIBRARY).write_bytes(_library(config_settings or {}).read_bytes())
    files = {"fourfold.pth": f"{ROOT}\n".encode()}
    return _write(pathlib.Path(wheel_directory) / f"{NAME}-{_tag()}.whl", files)


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("error: no source distribution: the package builds from a checkout of Fourfold only")


def _write(path, files):
    info = f"{NAME}.dist-info"
    files |= {f"{info}/{name}": text.encode() for name, text in _dist_info().items()}
    record = ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(data)}\n"
            _add(wheel, name, data)
        _add(wheel, f"{info}/RECORD", (record + f"{info}/RECORD,,\n").encode())
    return path.name


def _add(wheel, name, data):
    entry = zipfile.ZipInfo(name, DATE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    mode = 0o755 if name.endswith(".so") else 0o644
    entry.external_attr = (stat.S_IFREG | mode) << 16
    wheel.writestr(entry, data)
