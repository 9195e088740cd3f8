#!/bin/sh
# A compiler that does what the first line of the source asks for: `// behave: WHAT [TOKEN]`.
# TOKEN names the processes that it leaves behind, so that a test can look for them.
read -r _ _ behave token < kernel.cu
: > "${TMPDIR:-.}/intermediate.ptx"
case "$behave" in
passes | no_passes | stuck_pass | hang_in_passes)
    # A source that is compiled in two passes.
    case "$behave $*" in
    *" -fatbin "*)
        case "$behave" in
        no_passes) echo "kernel.cu(3): error: this pass is not for this compiler"; exit 1 ;;
        stuck_pass | hang_in_passes) sh -c "sleep 600; : $token" ;;
        esac
        echo "ptxas info    : Used 96 registers, used 7 barriers"
        echo "the image" > kernel.fatbin ;;
    *" -DFOURFOLD_HOST "*)
        case "$behave" in
        stuck_pass) echo "kernel.cu(4): error: no host"; exit 1 ;;
        hang_in_passes) sh -c "sleep 600; : $token" ;;
        esac
        exec cc -x c -c -fPIC -o host.o kernel.cu ;;
    *" -o kernel.so kernel.o") exec cc -shared -o kernel.so kernel.o ;;
    *" -c "*)
        echo "compiled whole"
        exec cc -x c -c -fPIC -o kernel.o kernel.cu ;;
    *" --no-device-link "*) exec cc -x c++ image.cpp -x none -shared -fPIC -o kernel.so host.o ;;
    *)
        echo "compiled whole"
        exec cc -x c -shared -fPIC -o kernel.so kernel.cu ;;
    esac ;;
translated | no_ptx)
    # A source whose device code is compiled to PTX, and translated.
    case "$behave $*" in
    no_ptx*" -o kernel.ptx "*) echo "kernel.cu(5): error: no PTX"; exit 1 ;;
    *" -DFOURFOLD_LIBRARY "*"compute_100a"*" -o library.ptx "*) echo "PTX of the library" > library.ptx ;;
    *" -DFOURFOLD_DEVICE "*"compute_99a"*" -o kernel.ptx "*) echo "PTX of the kernel" > kernel.ptx ;;
    *" -fatbin "*"sm_100a"*" translated.ptx")
        echo "ptxas info    : Used 96 registers, used 7 barriers"
        cp translated.ptx kernel.fatbin ;;
    *" -DFOURFOLD_HOST "*) exec cc -x c -c -fPIC -o host.o kernel.cu ;;
    *" --no-device-link "*) exec cc -x c++ image.cpp -x none -shared -fPIC -o kernel.so host.o ;;
    *) echo "compiled whole: $*"; exit 1 ;;
    esac ;;
compile)
    echo "ptxas info    : Function properties for main"
    echo "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
    echo "ptxas info    : Used 168 registers, used 8 barriers"
    case "$*" in
    *" -o kernel.so kernel.o") exec cc -shared -o kernel.so kernel.o ;;
    *" -c "*) exec cc -x c -c -fPIC -o kernel.o kernel.cu ;;
    esac
    exec cc -x c -shared -fPIC -o kernel.so kernel.cu ;;
arguments)
    for argument; do echo "argument: $argument"; done
    env | sed 's/^/variable: /'
    exit 1 ;;
missing_header)
    echo "kernel.cu:3:10: fatal error: cutlass/gemm/device/gemm.h: No such file or directory" >&2
    echo "compilation terminated." >&2
    exit 1 ;;
wrong_flag)
    echo "nvcc fatal   : Unknown option '--bogus-flag'" >&2
    exit 1 ;;
source_error)
    echo 'kernel.cu(12): warning #177-D: variable "x" was declared but never referenced' >&2
    echo 'kernel.cu(40): error: identifier "frobnicate" is undefined' >&2
    exit 2 ;;
silent)
    exit 3 ;;
hang)
    sh -c "sleep 600; : $token" &
    echo "still thinking"
    sh -c "sleep 600; : $token" ;;
crash)
    echo "about to crash"
    kill -SEGV $$ ;;
killed)
    kill -KILL $$ ;;
child_crash)
    echo "nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)" >&2
    exit 255 ;;
flood)
    yes "some very long and tedious remark about a template that nobody will ever read" | head -c 50000000
    echo "kernel.cu(7): error: lost in the middle"
    yes "some very long and tedious remark about a template that nobody will ever read" | head -c 50000000
    exit 1 ;;
nothing)
    exit 0 ;;
empty)
    : > kernel.so ;;
garbage)
    echo "this is no library" > kernel.so ;;
truncated_elf)
    printf '\177ELF and then nothing' > kernel.so ;;
daemon)
    sh -c "sleep 600; : $token" &
    exec cc -x c -shared -fPIC -o kernel.so kernel.cu ;;
*)
    echo "unknown behaviour '$behave'"
    exit 99 ;;
esac
