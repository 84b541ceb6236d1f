# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Gets virtme-ng and kernels out of Debian releases, without installing them: downloaded by an apt with a configuration
# of its own, from the mirror that this machine uses, and unpacked below build/vmtest. Sourced after common.sh.

readonly cache="${top:?}/build/vmtest"
readonly keyring=/usr/share/keyrings/debian-archive-keyring.gpg
readonly virtme="$cache/virtme-ng/usr/lib/python3/dist-packages"

readonly kernels_known="5.10 6.1"
readonly virtme_release=trixie # the first one with virtme-ng

kernel_release() {
  case $1 in
    5.10) echo bullseye ;;
    6.1) echo bookworm ;;
    *) return 1 ;;
  esac
}

# The base of Debian's archive in the machine's own configuration, whatever its form.
mirror() {
  apt-get indextargets --format "\$(ORIGIN) \$(LABEL) \$(COMPONENT) \$(REPO_URI)" 'Created-By: Packages' |
    awk '$1 == "Debian" && $2 == "Debian" && $3 == "main" { print $4; exit }'
}

# private_apt RELEASE COMMAND...: apt-get or apt-cache that sees this release alone.
private_apt() {
  local apt="$cache/apt/$1" command=$2
  shift 2
  "$command" -o Dir::State="$apt/state" -o Dir::Cache="$apt/cache" -o Dir::Etc::SourceList="$apt/sources.list" \
    -o Dir::Etc::SourceParts=- -o APT::Sandbox::User="$(id -un)" "$@"
}

read_release() {
  local release=$1 uri
  uri=$(mirror)
  if [[ -z $uri && $EUID -eq 0 ]]; then
    # Without package lists apt does not know yet which of its sources is Debian's.
    quietly apt-get update -qq || die "apt-get update failed"
    uri=$(mirror)
  fi
  [[ -n $uri ]] || die "no Debian archive among this machine's apt sources"
  mkdir -p "$cache/apt/$release"/{state/lists/partial,cache/archives/partial}
  echo "deb [signed-by=$keyring] $uri $release main" >"$cache/apt/$release/sources.list"
  quietly private_apt "$release" apt-get update -qq --error-on=any || die "the mirror does not offer Debian $release"
}

# unpack RELEASE PACKAGE FOLDER: the folder is there whole, or not at all.
unpack() {
  local release=$1 package=$2 folder=$3 scratch
  say "fetching $package of Debian $release"
  scratch=$(mktemp -d "$cache/unpack.XXXXXX")
  (cd "$scratch" && quietly private_apt "$release" apt-get download "$package") || die "cannot download $package"
  dpkg-deb -x "$scratch"/*.deb "$scratch/root"
  if [[ -d $scratch/root/lib/modules ]]; then
    depmod -b "$scratch/root" "$(ls "$scratch/root/lib/modules")"
  fi
  rm -rf "$folder"
  mv "$scratch/root" "$folder"
  rm -rf "$scratch"
}

fetch_virtme() {
  [[ ! -d $virtme ]] || return 0
  read_release "$virtme_release"
  unpack "$virtme_release" virtme-ng "$cache/virtme-ng"
}

# kernel_image KERNEL: the path of its vmlinuz.
kernel_image() {
  local kernel=$1 release folder package
  if [[ -f $kernel ]]; then
    realpath "$kernel"
    return
  fi
  release=$(kernel_release "$kernel") || die "no kernel $kernel: it is one of $kernels_known, or the path of a vmlinuz"
  folder="$cache/linux-$kernel"
  if [[ ! -d $folder ]]; then
    read_release "$release"
    package=$(private_apt "$release" apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" { print $2; exit }')
    [[ -n $package ]] || die "Debian $release has no linux-image-amd64"
    unpack "$release" "$package" "$folder"
  fi
  ls "$folder"/boot/vmlinuz-*
}
