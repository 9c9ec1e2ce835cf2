#!/bin/sh
# Builds every kernel program into DIR (default: beside its source). The same compiler gives the
# same bytes.
#   bpf/build.sh [DIR]
set -eu
to=$(mkdir -p "${1:-$(dirname "$0")}" && cd "${1:-$(dirname "$0")}" && pwd)
cd "$(dirname "$0")"
for source in *.bpf.c; do
    object=$to/${source%.c}.o
    # -g is for BTF, which describes the maps; the debug information is stripped again.
    clang -target bpf -mcpu=v3 -O2 -g -Wall -Wextra -Werror -nostdinc \
        -fdebug-compilation-dir=. -ffile-prefix-map="$PWD"=. -c "$source" -o "$object"
    llvm-strip -g "$object"
done
