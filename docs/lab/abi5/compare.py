#!/usr/bin/env python3
"""Shows that interface version 5 changed nothing in the golden kernels but the interface.

Removes from each golden source, before and after, the section of the ABI and the lines that call it, and compares the
rest byte by byte:

    python3 docs/lab/abi5/compare.py f394325 32c183f

The arguments are commits: the last with version 4, and the first with version 5. Later commits change comments too.
Without the second the working tree is compared. Sources that the first commit lacks are left out.
"""

import re
import subprocess
import sys

# The section of the ABI, from its first comment to the end of `output_bytes`, its last function.
SECTION = re.compile(r"// The ABI: plain C.*?inline void output_bytes\(.*?\n}\n", re.DOTALL)

# The call sites: signatures, the names of roles, and the members of the two versions' structures.
CALL_SITES = [
    re.compile(pattern)
    for pattern in (
        r"^(int32_t|int64_t) fourfold_(query|grid|prepare|update_pointers|scale_offset)\(",
        r"^  static char text\[(2048|8192)\] = \{\};$",
        r'^ +"\\"signature\\":',
        r"^  (Problem named_extents = \{\};|Problem const \*const problem = &named_extents;)$",
        r"^  (Pointers named_pointers = \{\};|Pointers const \*const pointers = &named_pointers;)$",
        r"^  read_extents\(\*extents, named_extents, message, size\);$",
        r"^  if \(int32_t (const )?status = (check_extents|read_extents|check_pointers|read_addresses)\(",
        r"^  if \(int32_t const status = fourfold_query\(|^  if \(int32_t status = fourfold_query\(",
        r"^    int32_t code = (check_pointers|read_addresses)\(",
        r"^  requirements->(sfa|sfb|operands\[\d\]) =",
        r"^// A library without scales has no such function\.$",
    )
]

# The function that locates scales selects by number in version 4, by role in version 5.
SCALES = re.compile(r"^int64_t fourfold_scale_offset\(.*?^}\n", re.DOTALL | re.MULTILINE)


def text_of(commit, path):
    """The text of a file at a commit, or in the working tree."""
    if commit is None:
        with open(path, encoding="utf-8") as file:
            return file.read()
    return subprocess.run(["git", "show", f"{commit}:{path}"], capture_output=True, text=True, check=True).stdout


def without_interface(text):
    """A golden source without the interface: its section and its call sites."""
    text, sections = SECTION.subn("", text)
    text, functions = SCALES.subn("", text)
    if (sections, functions) != (1, 1):
        raise SystemExit(f"{sections} sections and {functions} functions, not one of each")
    kept = [line for line in text.splitlines() if not any(site.search(line) for site in CALL_SITES)]
    return "\n".join(kept)


def main():
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    before, after = sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else None
    command = ["git", "ls-tree", "--name-only", before, "fixtures/golden/"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    paths = [path for path in listed.stdout.split() if path.endswith(".cu")]
    different = [path for path in paths if without_interface(text_of(before, path)) != without_interface(text_of(after, path))]
    for path in different:
        print(f"{path} differs outside of the interface")
    print(f"{len(paths) - len(different)} of {len(paths)} golden sources are the same but for the interface")
    raise SystemExit(1 if different or not paths else 0)


if __name__ == "__main__":
    main()
