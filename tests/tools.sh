#!/bin/sh
# Finds the tools by which the tests run code for other processors, and the browser that shows them the chat page; installs
# them where apt and the right to use it exist.
# Where they are missing all the same, the tests that need them fail and name them: nothing is skipped.
set -eu

missing=""
need() { # a command, and the package that brings it
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need qemu-aarch64 qemu-user
need ld.lld lld
need node nodejs
need aarch64-linux-gnu-gcc "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
need chromium chromium
need riscv64-linux-gnu-gcc "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross"
[ -n "$missing" ] || exit 0

sudo=""
if [ "$(id -u)" != 0 ]; then
    sudo="sudo -n"
fi
if ! command -v apt-get >/dev/null 2>&1 || ! $sudo true 2>/dev/null; then
    echo "satchel: the tests that need these will fail; please install:$missing" >&2
    exit 0
fi
echo "installing for the tests:$missing" >&2
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# shellcheck disable=SC2086  # a list of packages
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
