"""Builds the wheel: cargo compiles the library, which the wheel holds beside a Python module.

Settings (`pip install -C NAME=VALUE`): `profile` of cargo [default: release], `features` of the crate [default: none].
"""

import base64
import hashlib
import json
import os
import pathlib
import subprocess
import sysconfig
import tomllib
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
PACKAGE = "onnxruntime_ep_fourfold"
DIST_INFO = f"{PACKAGE}-{PROJECT['version']}.dist-info"


def _metadata():
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {PROJECT['name']}",
        f"Version: {PROJECT['version']}",
        f"Summary: {PROJECT['description']}",
        f"License-Expression: {PROJECT['license']}",
        f"Requires-Python: {PROJECT['requires-python']}",
        "Description-Content-Type: text/markdown",
        "",
        (HERE.parent / "README.md").read_text(),
    ]
    return "\n".join(lines)


def _library(settings):
    """Builds the library, and returns its path, which cargo states."""
    profile = settings.get("profile", "release")
    command = [os.environ.get("CARGO", "cargo"), "build", "--message-format=json-render-diagnostics"]
    command += ["--locked", "--lib", "--profile", profile, "--manifest-path", str(HERE.parent / "Cargo.toml")]
    if settings.get("features"):
        command += ["--features", settings["features"]]
    if profile == "release":
        command += ["--config", 'profile.release.strip="debuginfo"']
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    except FileNotFoundError:
        raise SystemExit("error: cargo is not installed\nhelp: install Rust from https://rustup.rs") from None
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("target", {}).get("name") == "fourfold_onnxruntime":
            for file in map(pathlib.Path, message.get("filenames", [])):
                if file.suffix in (".so", ".dylib", ".dll"):
                    return file
    raise SystemExit("error: cargo built no library")


def _tag():
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"py3-none-{platform}"


def _dist_info():
    wheel = f"Wheel-Version: 1.0\nGenerator: fourfold\nRoot-Is-Purelib: false\nTag: {_tag()}\n"
    return {f"{DIST_INFO}/METADATA": _metadata().encode(), f"{DIST_INFO}/WHEEL": wheel.encode()}


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """Write the metadata, which need no library, and return the name of their folder."""
    for path, content in _dist_info().items():
        file = pathlib.Path(metadata_directory) / path
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    return DIST_INFO


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Write the wheel, and return its name."""
    library = _library(config_settings or {})
    files = {
        f"{PACKAGE}/__init__.py": (HERE / PACKAGE / "__init__.py").read_bytes(),
        f"{PACKAGE}/{library.name}": library.read_bytes(),
        **_dist_info(),
    }
    record = "".join(f"{path},sha256={_hash(content)},{len(content)}\n" for path, content in files.items())
    files[f"{DIST_INFO}/RECORD"] = f"{record}{DIST_INFO}/RECORD,,\n".encode()
    name = f"{PACKAGE}-{PROJECT['version']}-{_tag()}.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return name


def build_sdist(sdist_directory, config_settings=None):
    """Refuse: the library needs the whole workspace."""
    raise SystemExit("error: there is no source archive\nhelp: install the folder of a checkout")


def _hash(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
