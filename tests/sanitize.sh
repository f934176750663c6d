#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tests and fuzzers under sanitizers, for as long as one asks:
#   tests/sanitize.sh address   CPU suites and the seeded fuzzers under the address and undefined-behaviour sanitizers
#   tests/sanitize.sh thread    CPU suites that use threads, under the thread sanitizer
#   tests/sanitize.sh fuzz      libFuzzer (clang++) under both of the first
#   tests/sanitize.sh gpu [FOLDER]  GPU suites and fuzzers under compute-sanitizer: memcheck, racecheck, initcheck, synccheck.
#                               With the folder of programs that are built already, nothing is built.
# MHAR_SECONDS (default 60) is how long a fuzzer runs; any program on the GPU is stopped 20 seconds after that, and reported so.
# MHAR_JOBS is how many programs run at a time: on the GPU, too, the processors take most of the time, for the reference.
# MHAR_TOOLS names some of the four tools; MHAR_TEST_CALLS (there 3) is how many calls or sweeps a random test makes.
# MHAR_LIMIT is how many seconds all programs on the GPU may take together: later ones are left out, and counted.
# Builds go to build/sanitize/.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${MHAR_SECONDS:-60}
build=build/sanitize/$1
jobs=${MHAR_JOBS:-$(nproc)}

# build_with FLAGS TARGET...; not optimised unless `type` says so: under sanitizers that compiles three times as fast.
build_with() {
  local flags=$1
  shift
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE="${type:-None}" -DMHAR_CUDA="${cuda:-OFF}" -DMHAR_BUILD_BENCH=OFF \
    -DMHAR_BUILD_EXAMPLES=OFF -DMHAR_WARNINGS_AS_ERRORS=OFF -DCMAKE_CXX_FLAGS="$flags" \
    ${cuda:+-DCMAKE_CUDA_FLAGS=-lineinfo} >/dev/null
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

# What a report looks like in a log, and kernels whose hand-overs racecheck does not follow: docs/design/cuda-forward.md and
# docs/testing.md.
reports='^=+ .*(Invalid|hazard detected|Race reported|Uninit|Barrier error)|ERROR: CHECK|fuzz: input'
unfollowed="12route_kernel 20advance_tiles_kernel"

# on_gpu TOOL PROGRAM NAME ARGUMENT...: one line of outcome, and everything else in a log.
on_gpu() {
  local tool=$1 program=$2 name=$3 log outcome=passed result=0 begin=$SECONDS time=$((seconds + 20)) options=()
  shift 3
  if ((begin + time > limit)); then time=$((limit - begin)); fi
  if ((time <= 0)); then
    printf '%-7s %-9s %-16s %s\n' left "$tool" "$program" "$name" | tee -a "$outcomes"
    return
  fi
  log=$(mktemp "$logs/$tool-XXXXXX")
  # A block's barriers in shared memory; what the tools guess is too few, and synccheck then ends the kernel.
  options=(--num-cuda-barriers 1024)
  if [[ $tool == racecheck ]]; then for kernel in $unfollowed; do options+=(--kernel-name-exclude "kns=$kernel"); done; fi
  timeout -k 5 "$time" compute-sanitizer --tool "$tool" "${options[@]}" --error-exitcode 1 "$programs/mhar_$program" "$@" \
    >"$log" 2>&1 || result=$?
  if ((result == 124 || result == 137)); then
    outcome=stopped
    # What was reported by then counts.
    if grep -Eq "$reports" "$log"; then outcome=FAILED; fi
  elif ((result != 0)); then
    outcome=FAILED
  fi
  printf '%-7s %-9s %-16s %s (%d s)\n' "$outcome" "$tool" "$program" "$name" $((SECONDS - begin)) | tee -a "$outcomes"
  if [[ $outcome == passed ]]; then return; fi
  echo "  $log"
  # Each pair of lines once, and how many reports name it.
  { grep -E "$reports|^=+ +and .* access" "$log" || true; } |
    sed -E 's/^=+ +//; s/ at .* in ([^ ]+:[0-9]+).*/ at \1/; s/\+0x[0-9a-f]+.*//' |
    awk '/Race reported/ { first = $0; next } /^and / { print first, $0; next } { print }' |
    sort | uniq -c | sort -rn | sed -n 1,20p | cut -c 1-200
}

# A program for each group of cases, the longest first. Cases of gigabytes, and those that take minutes under a sanitizer, are for
# the suites themselves.
gpu_programs() {
  export MHAR_TEST_CALLS=${MHAR_TEST_CALLS:-3}
  logs=$(mktemp -d "${TMPDIR:-/tmp}/mhar-sanitize-XXXXXX")
  outcomes=$logs/outcomes
  limit=$((SECONDS + ${MHAR_LIMIT:-1000000}))
  local tool cases outcome tools=${MHAR_TOOLS:-memcheck racecheck initcheck synccheck}
  local without="*2^31*,*no block holds*,*every ending*,*two threads*"
  local device=("route: random*" "route: awkward*" "route_gradient: random*" "route_gradient: awkward*"
    "route_gradient: rings*" "route_gradient: plain*" "device: *")
  local router=("device tensor sweeps: full*" "device wide sweeps: equal*" "device wide sweeps: split*"
    "device wide sweeps: recompute*" "device sweeps: random*" "device sweeps: recompute*" "device tensor sweeps: recompute*"
    "device tensor sweeps: the bits*")
  limited() {
    while (($(jobs -rp | wc -l) >= jobs)); do wait -n || true; done
    on_gpu "$@" &
  }
  for_tools() { for tool in $tools; do limited "$tool" "$@"; done; }
  for kind in calls sweeps; do for_tools "fuzz_${kind}_cuda" "for $seconds seconds" "$seconds"; done
  for cases in "${router[@]}"; do for_tools test_router_cuda "$cases" -tc="$cases" -tce="$without"; done
  for cases in "${device[@]}"; do for_tools test_device_cuda "$cases" -tc="$cases" -tce="$without"; done
  for_tools test_router_cuda others -tce="$without$(printf ',%s' "${router[@]}")"
  for_tools test_device_cuda others -tce="$without$(printf ',%s' "${device[@]}")"
  for_tools test_thread_cuda all
  wait
  for outcome in passed stopped left FAILED; do echo "$outcome: $(grep -c "^$outcome" "$outcomes" || true)"; done
  ! grep -q ^FAILED "$outcomes"
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
    programs=${2:-}
    if [[ -z $programs ]]; then
      type=Release cuda=ON build_with "" mhar_test_thread_cuda mhar_test_device_cuda mhar_test_router_cuda mhar_fuzz_calls_cuda \
        mhar_fuzz_sweeps_cuda
      programs=$build/tests
    fi
    gpu_programs
    ;;
  *)
    echo "unknown: $1"
    exit 2
    ;;
esac
