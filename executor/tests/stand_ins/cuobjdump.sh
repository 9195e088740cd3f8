#!/bin/sh
# A disassembler that prints what the source says after `// sass:`, as real ones do.
[ "$1" = -sass ] && [ -s "$2" ] || { echo "cuobjdump fatal   : bad arguments: $*"; exit 1; }
if grep -q '^// sass_fails' kernel.cu; then
    echo "cuobjdump fatal   : '$2' is not in 'cubin' format"
    exit 1
fi
echo "	Function : _ZN7cutlass8MMA_AtomIJNS4_17SM100_MMA_MXF4_SSE"
sed -n 's|^// sass: *\(.*\)|        /*0010*/                   \1 ;   /* 0x0000df00ff017b82 */|p' kernel.cu
