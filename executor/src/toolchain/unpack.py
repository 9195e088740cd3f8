"""Takes the files of the toolchain from downloaded wheels.

Arguments: a JSON file that lists the files to take from each package, the folder of wheels, the target folder. A wheel
is identified by its SHA-256, never by its name. Nothing outside the target folder is written.
"""

import hashlib
import json
import os
import shutil
import sys
import zipfile


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def place_of(name, takes):
    for source, place in takes:
        if name == source or source.endswith("/") and name.startswith(source):
            relative = place + name[len(source):]
            if any(part in ("", ".", "..") for part in relative.split("/")) or "\\" in relative:
                sys.exit("ERROR: a wheel contains a file with the unsafe name %r" % name)
            return relative
    return None


def unpack(package, wheel, tree):
    taken = 0
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            relative = None if entry.is_dir() else place_of(entry.filename, package["takes"])
            if relative is None:
                continue
            path = os.path.join(tree, *relative.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            # Reading to the end compares the checksum of the archive.
            with archive.open(entry) as source, open(path, "xb") as target:
                shutil.copyfileobj(source, target)
            if entry.external_attr >> 16 & 0o111:
                os.chmod(path, 0o755)
            taken += 1
    if taken == 0:
        sys.exit("ERROR: the wheel of %s contains none of the required files" % package["name"])


def main(plan, wheels, tree):
    with open(plan, encoding="utf-8") as file:
        packages = json.load(file)
    found = {}
    for name in os.listdir(wheels):
        path = os.path.join(wheels, name)
        found[sha256(path)] = path
    for package in packages:
        wheel = next((found[pinned] for pinned in package["hashes"] if pinned in found), None)
        if wheel is None:
            sys.exit("ERROR: no downloaded wheel of %s has the pinned hash" % package["name"])
        unpack(package, wheel, tree)


main(*sys.argv[1:])
