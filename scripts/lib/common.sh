# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the scripts share: source it after `set -euo pipefail`.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# Debian keeps bpftool, ip, nft, nsd and dnsmasq there; a plain user's PATH lacks it.
export PATH="$PATH:/usr/sbin:/sbin"
readonly top

say() { printf '%s\n' "$*" >&2; }

die() {
  say "${0##*/}: $*"
  exit 1
}

require_root() {
  [[ $EUID -eq 0 ]] || die "needs root: it loads BPF programs and makes cgroups and network namespaces"
}

missing_packages() {
  local package
  while read -r package; do
    [[ -z $package || $package == \#* ]] && continue
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || echo "$package"
  done <"$top/scripts/lib/packages"
}

# Runs a command, quiet unless it fails.
quietly() {
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 </dev/null || status=$?
  [[ $status -eq 0 ]] || cat "$log" >&2
  rm -f "$log"
  return "$status"
}

install_packages() {
  local -a missing
  mapfile -t missing < <(missing_packages)
  [[ ${#missing[@]} -gt 0 ]] || return 0
  command -v apt-get >/dev/null || die "missing packages, and no apt-get to install them: ${missing[*]}"
  [[ $EUID -eq 0 ]] || die "missing packages; as root: apt-get install ${missing[*]}"
  say "installing: ${missing[*]}"
  quietly apt-get update -qq || die "apt-get update failed"
  # nsd is needed as a program of the tests; its package would start it as this machine's name server.
  local policy=/usr/sbin/policy-rc.d status=0
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  else
    policy=""
  fi
  DEBIAN_FRONTEND=noninteractive quietly apt-get install -y -qq --no-install-recommends \
    -o DPkg::Lock::Timeout=600 "${missing[@]}" || status=$?
  [[ -z $policy ]] || rm -f "$policy"
  [[ $status -eq 0 ]] || die "apt-get install failed"
}

# build PRESET [TARGET...]: configures and builds build/PRESET; quiet unless it fails.
build() {
  local preset=$1
  shift
  if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
  fi
  cd "$top" || die "no folder $top"
  quietly cmake --preset "$preset" || die "configuring $preset failed"
  say "building $preset${*:+: $*}"
  quietly cmake --build --preset "$preset" ${1:+--target "$@"} || die "building $preset failed"
}
