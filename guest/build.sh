#!/bin/sh
# Builds the guest: build.sh [-o OUT]. Environment: CC, CFLAGS (replaces the optimisation flags, for sanitizers), LDFLAGS.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
out=$here/../src/proofbox/bin/proofbox-guest
while getopts o: option; do
    case $option in
        o) out=$OPTARG ;;
        *) echo "usage: build.sh [-o OUT]" >&2; exit 2 ;;
    esac
done

static=-static
if [ -n "${CC:-}" ]; then
    cc=$CC
elif command -v musl-gcc >/dev/null 2>&1; then
    cc=musl-gcc
elif command -v cc >/dev/null 2>&1; then
    cc=cc
elif command -v gcc >/dev/null 2>&1; then
    cc=gcc
else
    echo "build.sh: the guest needs a C compiler (musl-gcc, cc or gcc); on Debian: apt install gcc libc6-dev musl-tools" >&2
    exit 1
fi
case $cc in
    # musl has no kernel headers of its own; behind its own ones, those of the system serve.
    *musl-gcc*) kernel="-idirafter /usr/include -idirafter /usr/include/$(gcc -print-multiarch 2>/dev/null || uname -m)-linux-gnu" ;;
    *) kernel= ;;
esac
case $kernel in *-linux-gnu-linux-gnu) kernel=${kernel%-linux-gnu} ;; esac
# Fewer mappings: each costs every fork and every exit of a sandbox's processes.
layout=-Wl,-z,noseparate-code
case $cc in *ziglang*) layout= ;; esac # its linker knows no such option
case "${CFLAGS:-}" in *-fsanitize*) static= ;; esac

mkdir -p "$(dirname -- "$out")"
# Written beside and renamed: a running guest, or a build at the same time, never meets half a file.
part=$out.$$
trap 'rm -f "$part"' EXIT
# shellcheck disable=SC2086
$cc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -fno-strict-aliasing \
    ${CFLAGS:--Os -ffunction-sections -fdata-sections -fno-asynchronous-unwind-tables -fstack-protector-strong} \
    $kernel "$here"/*.c $static -Wl,--gc-sections $layout ${LDFLAGS:--s} -o "$part"
chmod 755 "$part"
mv -f "$part" "$out"
