#!/bin/sh
# A program that starts the compiler, and says how: `launcher.sh COMPILER ARGUMENTS...`.
echo "launched: $*"
echo "in the folder $(pwd)"
echo "TMPDIR of the launcher: ${TMPDIR-unset}"
exec "$@"
