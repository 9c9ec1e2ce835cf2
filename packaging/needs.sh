# Checks before a long build. Scripts source this file in the directory of the project.

# Ends the script unless cargo is installed and at least as new as `rust-version` in Cargo.toml.
need_cargo() {
    least=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    found=$(cargo --version 2>/dev/null | cut -d' ' -f2)
    if [ -z "$found" ]; then
        found=missing
    elif [ "$(printf '%s\n' "$least" "$found" | sort -V | head -n 1)" = "$least" ]; then
        return
    fi
    echo "cargo is $found: install Rust $least or newer (https://rustup.rs)" >&2
    exit 1
}

# Whether a C program can be compiled and linked. Arguments go to the compiler.
can_link() {
    probe=$(mktemp)
    printf '#include <stdio.h>\nint main(void) { return 0; }\n' | cc -x c -o "$probe" "$@" - 2>/dev/null && linked=0 || linked=1
    rm -f "$probe"
    return $linked
}

# Ends the script unless each program is installed. Arguments are pairs PROGRAM:PACKAGE. `cc:` is a
# C compiler and linker.
need() {
    packages=
    for pair; do
        case $pair in
            cc:) can_link || packages="$packages gcc libc6-dev" ;;
            *) command -v "${pair%%:*}" >/dev/null || packages="$packages ${pair#*:}" ;;
        esac
    done
    [ -z "$packages" ] || { echo "programs are missing: sudo apt install$packages" >&2; exit 1; }
}
