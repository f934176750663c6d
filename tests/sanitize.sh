#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tests and fuzzers under sanitizers, for as long as one asks:
#   tests/sanitize.sh address   CPU suites and the seeded fuzzers under the address and undefined-behaviour sanitizers
#   tests/sanitize.sh thread    CPU suites that use threads, under the thread sanitizer
#   tests/sanitize.sh fuzz      libFuzzer (clang++) under both of the first
#   tests/sanitize.sh gpu       GPU suites under compute-sanitizer: memcheck, racecheck, initcheck, synccheck
# MHAR_SECONDS (default 60) is how long a fuzzer runs. Builds go to build/sanitize/.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${MHAR_SECONDS:-60}
build=build/sanitize/$1
jobs=$(nproc)

# build_with FLAGS TARGET...; not optimised unless `type` says so: under sanitizers that compiles three times as fast.
build_with() {
  local flags=$1
  shift
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE="${type:-None}" -DMHAR_CUDA="${cuda:-OFF}" -DMHAR_BUILD_BENCH=OFF \
    -DMHAR_BUILD_EXAMPLES=OFF -DMHAR_WARNINGS_AS_ERRORS=OFF -DCMAKE_CXX_FLAGS="$flags" >/dev/null
  cmake --build "$build" --parallel "$jobs" --target "$@"
}

# Programs of one machine run side by side; finish fails when one of them did.
started=()
start() {
  "$@" &
  started+=($!)
}
finish() {
  for program in "${started[@]}"; do wait "$program"; done
  started=()
}

case "$1" in
  address)
    build_with "-fsanitize=address,undefined -fno-sanitize-recover=all -D_GLIBCXX_ASSERTIONS" \
      mhar_test_types mhar_test_thread mhar_test_reference mhar_test_cpu mhar_test_router mhar_fuzz_calls \
      mhar_fuzz_sweeps
    # One test is a limit of time.
    for suite in types thread reference cpu router; do
      start "$build/tests/mhar_test_$suite" --test-case-exclude="*planned at once*"
    done
    for kind in calls sweeps; do start "$build/tests/mhar_fuzz_$kind" "$seconds"; done
    finish
    ;;
  thread)
    build_with "-fsanitize=thread" mhar_test_cpu mhar_test_router
    for suite in cpu router; do
      start "$build/tests/mhar_test_$suite" --test-case="*executor*,*thread*,*two routers*"
    done
    finish
    ;;
  fuzz)
    for kind in call sweep; do
      mkdir -p "$build/corpus_$kind"
      clang++ -std=c++17 -O1 -g -DMHAR_LIBFUZZER -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
        -Itests -Iinclude -isystem "${MHAR_EIGEN:-/usr/include/eigen3}" "tests/fuzz/${kind}_fuzz.cpp" -o "$build/${kind}_fuzz"
      "$build/${kind}_fuzz" -max_total_time="$seconds" -max_len=512 -len_control=0 -print_final_stats=1 \
        "$build/corpus_$kind"
    done
    ;;
  gpu)
    type=Release cuda=ON build_with "" mhar_test_device_cuda mhar_test_router_cuda mhar_fuzz_calls_cuda mhar_fuzz_sweeps_cuda
    for tool in memcheck racecheck initcheck synccheck; do
      run=(compute-sanitizer --tool "$tool" --error-exitcode 1)
      "${run[@]}" "$build/tests/mhar_test_device_cuda" --test-case="*awkward*,*field case*" --test-case-exclude="*2^31*"
      "${run[@]}" "$build/tests/mhar_test_router_cuda" --test-case="*random sweeps*,*awkward*,*whatever ends a call*"
      for kind in calls sweeps; do "${run[@]}" "$build/tests/mhar_fuzz_${kind}_cuda" "$seconds"; done
    done
    ;;
  *)
    echo "unknown: $1"
    exit 2
    ;;
esac
