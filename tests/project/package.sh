#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The library as others get it. `install` makes an installation and moves it; every other argument is one way of consuming it.
. "$(dirname "$0")/common.sh"
cmake=${MHAR_CMAKE:-cmake}
build=${MHAR_BUILD:?}
installed=$build/tests/project/moved
compiler=${compilers[0]}
consumer=$project_dir/consumer
minor=${MHAR_VERSION%.*}

# consume WAY [CMAKE-ARGUMENT...]: configures, builds and runs the consumer.
consume() {
  local way=$1
  shift
  "$cmake" -G "$MHAR_GENERATOR" -S "$consumer" -B "$scratch/build" -DMHAR_WAY="$way" -DMHAR_SOURCE="$root" \
    -DCMAKE_PREFIX_PATH="$installed" -DCMAKE_CXX_COMPILER="$compiler" "$@"
  "$cmake" --build "$scratch/build"
  "$scratch/build/consumer"
}

# The same with CUDA. The compiler links its own runtime, statically; a second one would show as a library.
consume_cuda() {
  if [[ -z $nvcc ]]; then skip "no CUDA compiler"; fi
  consume "$1" -DMHAR_PARTS=cuda -DCMAKE_CUDA_COMPILER="$nvcc"
  "$scratch/build/consumer_cuda"
  if ldd "$scratch/build/consumer_cuda" | grep cudart; then
    echo "a second CUDA runtime"
    exit 1
  fi
}

# refused PATTERN CMAKE-ARGUMENT...: configuring fails, with a message that a reader understands.
refused() {
  local pattern=$1
  shift
  rm -rf "$scratch/build"
  if "$cmake" -G "$MHAR_GENERATOR" -S "$consumer" -B "$scratch/build" -DMHAR_WAY=find_package \
    -DCMAKE_PREFIX_PATH="$installed" -DCMAKE_CXX_COMPILER="$compiler" "$@" >"$scratch/log" 2>&1; then
    echo "accepted, though it must not be: $*"
    exit 1
  fi
  # CMake breaks its messages into lines.
  if ! tr -s ' \n' ' ' <"$scratch/log" | grep -qE "$pattern"; then
    echo "no message like '$pattern' in:"
    cat "$scratch/log"
    exit 1
  fi
}

case "$1" in
  install)
    rm -rf "$installed"
    "$cmake" --install "$build" --prefix "$scratch/prefix" >/dev/null
    mv "$scratch/prefix" "$installed"
    ;;
  find_package) consume find_package -DMHAR_WANTED="$minor" "-DMHAR_PARTS=mhar;reference" ;;
  find_package_cxx20) consume find_package -DMHAR_PARTS=reference -DCMAKE_CXX_STANDARD=20 ;;
  find_package_without_cuda)
    consume find_package -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON
    ;;
  find_package_cuda) consume_cuda find_package ;;
  refused_versions)
    refused 'requested version "0.99"' -DMHAR_WANTED=0.99
    refused 'requested version "1.0"' -DMHAR_WANTED=1.0
    ;;
  missing_component)
    refused 'component cuda needs the CUDA toolkit' -DMHAR_PARTS=cuda -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON
    refused 'component reference needs Eigen' -DMHAR_PARTS=reference -DCMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON
    refused 'no component torch' -DMHAR_PARTS=torch
    ;;
  installed_headers)
    diff <(cd "$include" && find mhar | sort) <(cd "$installed/include" && find mhar | sort)
    if grep -rnF -e "$root" -e "$build" -e "$scratch" "$installed/share"; then
      echo "the installation knows where it was made"
      exit 1
    fi
    ;;
  pkg_config)
    if ! command -v pkg-config >/dev/null; then skip "no pkg-config"; fi
    export PKG_CONFIG_PATH=$installed/share/pkgconfig
    pkg-config --exact-version="$MHAR_VERSION" mhar
    read -r -a flags <<<"$(pkg-config --cflags --libs mhar)"
    "$compiler" -std=c++17 "$consumer/main.cpp" "${flags[@]}" -o "$scratch/program"
    "$scratch/program"
    ;;
  add_subdirectory) consume add_subdirectory -DMHAR_PARTS=reference -DCMAKE_CXX_FLAGS=-Werror ;;
  add_subdirectory_cuda) consume_cuda add_subdirectory ;;
  fetch_content) consume fetch_content -DMHAR_PARTS=reference ;;
  copied_folder)
    cp -r "$include/mhar" "$scratch/mhar"
    "$compiler" -std=c++17 "${strict[@]}" -I "$scratch" -pthread "$consumer/main.cpp" -o "$scratch/program"
    "$scratch/program"
    ;;
  two_versions)
    # Two versions in one program, as two plugins bring them: their symbols have to differ.
    mkdir "$scratch/next"
    cp -r "$include/mhar" "$scratch/next/mhar"
    sed -i 's/\(MHAR_VERSION_MINOR\) .*/\1 99/' "$scratch/next/mhar/version.hpp"
    for version in "$include" "$scratch/next"; do
      "$compiler" -std=c++17 -O0 -I "$version" -c "$consumer/main.cpp" -o "$scratch/${version##*/}.o"
      nm -C --defined-only "$scratch/${version##*/}.o" | sed -nE 's/.* (mhar::.*)/\1/p' | sort >"$scratch/${version##*/}.symbols"
      [[ -s $scratch/${version##*/}.symbols ]]
    done
    if comm -12 "$scratch/include.symbols" "$scratch/next.symbols" | grep .; then
      echo "symbols of both versions have the same names"
      exit 1
    fi
    ;;
  *)
    echo "unknown: $1"
    exit 2
    ;;
esac
