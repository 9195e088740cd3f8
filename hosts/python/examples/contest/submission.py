"""A GPU-MODE style submission: a block-scaled product of NVFP4 operands, served by `fourfold::scaled_mm`.

The input is the tuple (a, b, sfa_ref, sfb_ref, sfa_permuted, sfb_permuted, c):

| tensor | shape | dtype |
|---|---|---|
| a, b | [M, K/2, L], [N, K/2, L], K innermost in memory, L outermost | float4_e2m1fn_x2 |
| sfa_ref, sfb_ref | [M, K/16, L], [N, K/16, L] | float8_e4m3fn |
| sfa_permuted, sfb_permuted | [32, 4, rows/128, 4, K/64, L] | float8_e4m3fn |
| c | [M, N, L] | float16 |

The permuted scales are views of the layout that the hardware reads: in memory, their axes have the order
(L, rows/128, K/64, 32, 4, 4). So nothing is repacked: every `permute` below is a view.
"""

import torch

import fourfold.torch as ff


def custom_kernel(data):
    a, b, _, _, sfa, sfb, c = data
    order = (5, 2, 4, 0, 1, 3)
    d = ff.scaled_mm(
        a.permute(2, 0, 1), sfa.permute(order), b.permute(2, 0, 1), sfb.permute(order), out_dtype=c.dtype, swizzled=True
    )
    return d.permute(1, 2, 0)


def generate_input(m, n, k, l, seed):
    """Inputs like those of the contest: every code, scales from 0 to 3."""
    generator = torch.Generator().manual_seed(seed)

    def codes(rows):
        data = torch.randint(0, 256, (l, rows, k // 2), dtype=torch.uint8, generator=generator)
        return data.permute(1, 2, 0).view(torch.uint8)

    def scales(rows):
        # The codes of small integers in E4M3.
        linear = torch.randint(0, 4, (l, rows, k // 16), generator=generator).float().to(torch.float8_e4m3fn)
        blocks = linear.view(torch.uint8).reshape(l, rows // 128, 4, 32, k // 64, 4)
        storage = blocks.permute(0, 1, 4, 3, 2, 5).contiguous()
        return linear.permute(1, 2, 0), storage.permute(3, 4, 1, 5, 2, 0).view(torch.float8_e4m3fn)

    (sfa, sfa_permuted), (sfb, sfb_permuted) = scales(m), scales(n)
    c = torch.empty(l, m, n, dtype=torch.float16).permute(1, 2, 0)
    return codes(m), codes(n), sfa, sfb, sfa_permuted, sfb_permuted, c


def ref_kernel(data):
    """The reference, in float64 from the scales that are not permuted."""
    a, b, sfa, sfb, _, _, c = data
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)

    def dense(codes, scales):
        packed = codes.permute(2, 0, 1).contiguous().view(torch.uint8).long()
        unpacked = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
        return values[unpacked] * scales.permute(2, 0, 1).double().repeat_interleave(16, -1)

    return (dense(a, sfa) @ dense(b, sfb).transpose(1, 2)).to(c.dtype).permute(1, 2, 0)


if __name__ == "__main__":
    for shape in ((128, 256, 256, 1), (128, 128, 512, 3), (384, 256, 192, 2)):
        data = generate_input(*shape, seed=1111)
        found, expected = custom_kernel(data), ref_kernel(data)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        name = " ".join(f"{letter}={extent}" for letter, extent in zip("MNKL", shape))
        print(f"{name}: {(found != expected).sum()} of {found.numel()} differ")
