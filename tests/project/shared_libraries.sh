#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two shared libraries in one process, each with a copy of the headers, every symbol exported: of two versions (argument host), or
# for two lists of architectures (argument cuda). Each uses its own.
. "$(dirname "$0")/common.sh"
cat >"$scratch/main.cpp" <<'MAIN'
#include <cstdio>
extern "C" int plugin_a();
extern "C" int plugin_b();
int main()
{
  const int a = plugin_a();
  const int b = plugin_b();
  std::printf("%d %d\n", a, b);
  return a == EXPECTED_A && b == EXPECTED_B && plugin_a() == a ? 0 : 1;
}
MAIN
link_and_run() {
  "${compilers[0]}" -std=c++17 "$@" "$scratch/main.cpp" -L "$scratch" -la -lb -Wl,-rpath,"$scratch" -o "$scratch/program"
  "$scratch/program"
}

case "$1" in
  host)
    minor=$(sed -nE 's/#define MHAR_VERSION_MINOR ([0-9]+)/\1/p' "$include/mhar/version.hpp")
    mkdir "$scratch/next"
    cp -r "$include/mhar" "$scratch/next/mhar"
    sed -i 's/\(MHAR_VERSION_MINOR\) .*/\1 99/' "$scratch/next/mhar/version.hpp"
    build() { "${compilers[0]}" -std=c++17 -O0 -fPIC -shared -pthread -DMHAR_PLUGIN="plugin_$1" -I "$2" "$project_dir/plugins/host.cpp" -o "$scratch/lib$1.so"; }
    build a "$include"
    build b "$scratch/next"
    link_and_run -DEXPECTED_A=$((200 + minor)) -DEXPECTED_B=299
    ;;
  cuda)
    if [[ -z $nvcc ]]; then skip "no CUDA compiler"; fi
    build() { "$nvcc" -std=c++17 -arch="$2" -O0 -Xcompiler=-fPIC -shared -DMHAR_PLUGIN="plugin_$1" -I "$include" "$project_dir/plugins/device.cu" -o "$scratch/lib$1.so"; }
    build a sm_80
    build b sm_90
    # code::bad_shape, from each.
    link_and_run -DEXPECTED_A=2 -DEXPECTED_B=2
    # What launches kernels has other names in the two; a launcher that they shared would run the other's kernels.
    for name in a b; do
      nm -D -C --defined-only "$scratch/lib$name.so" | sed -nE 's/.* (mhar::.*::(device|kernel)::.*)/\1/p' | grep -E 'device::sm_[0-9]+::' | sort >"$scratch/$name.symbols"
      [[ -s $scratch/$name.symbols ]]
    done
    if comm -12 "$scratch/a.symbols" "$scratch/b.symbols" | grep .; then
      echo "launchers for both architectures have the same names"
      exit 1
    fi
    ;;
esac
