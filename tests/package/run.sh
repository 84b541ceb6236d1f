#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh CMAKE BUILD_DIR COMPILER SOURCE_DIR WITH_MAPS: installs the build into a folder that is removed again, and
# builds and runs the consumer against it.
set -euo pipefail
cmake=$1 build=$2 compiler=$3 source=$4 with_maps=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for library in mapgate_reconciler mapgate_thread_driver $([[ $with_maps == 1 ]] && echo mapgate_maps); do
  "$cmake" --build "$build" --target "$library" >/dev/null
done
"$cmake" --install "$build" --prefix "$work/prefix" >/dev/null
# The consumer must not find anything in the source tree.
cp -r "$source/tests/package/consumer" "$source/reconciler/example/main.cc" "$work"
"$cmake" -S "$work/consumer" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$compiler" -DWITH_MAPS="$with_maps" -DEXAMPLE="$work/main.cc" >/dev/null
"$cmake" --build "$work/build"
"$work/build/example"
[[ $with_maps != 1 ]] || "$work/build/declare_map"
