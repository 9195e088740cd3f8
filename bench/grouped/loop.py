"""Prints suites that compute groups with one dense product each, to compare with one grouped product.

    python3 bench/grouped/loop.py > loop.toml
    fourfold bench --suites loop.toml --suite loop_w4a16 --suite loop_nvfp4 --peers none

Sizes are those of suites.toml, with equally many rows per group. All products of a case are in one CUDA graph.
"""

SIZES = [(8, 16, 4096, 7168), (32, 4, 5760, 2880), (128, 1, 1536, 2048), (8, 512, 4096, 7168)]


def program(groups, has_scales):
    """A program of `groups` products. A and SFA are inputs, B and SFB params."""
    element = "f4E2M1FN" if has_scales else "bf16"
    inputs, ops = [], []
    for group in range(groups):
        inputs.append(f"    %a{group}: tensor<[{{M}}, {{K}}], {element}>")
        scales = ""
        if has_scales:
            inputs.append(f"    %sfa{group}: tensor<[{{M}}, {{K/16}}], f8E4M3FN, blocked>")
            scales = f"%sfa{group}, "
        inputs.append(f"    param %b{group}: tensor<[{{N}}, {{K}}], f4E2M1FN>")
        inputs.append(f"    param %sfb{group}: tensor<[{{N}}, {{K/16}}], f8E4M3FN, blocked>")
        operands = f"%a{group}, {scales}%b{group}, %sfb{group}"
        ops.append(f"  %d{group} = scaled_mma {operands} {{block = 16}} : tensor<[{{M}}, {{N}}], bf16>")
    results = ", ".join(f"%d{group}" for group in range(groups))
    return "\n".join(["fir 1", "func @loop(", ",\n".join(inputs), ") {", *ops, f"  return {results}", "}"])


def main():
    for name, rows in (("w4a16", "bf16"), ("nvfp4", "NVFP4")):
        print(f'[[suite]]\nname = "loop_{name}"\nabout = "One product for each expert, {rows} rows by NVFP4 weights"\n')
        for groups, m, n, k in SIZES:
            print(f'[[suite.case]]\nname = "{groups}_of_{m}"\nsizes = [{{ M = {m}, N = {n}, K = {k} }}]')
            print(f"program = '''\n{program(groups, name == 'nvfp4')}\n'''\n")


if __name__ == "__main__":
    main()
