# SPDX-License-Identifier: Apache-2.0
# For the scripts that promise to work on a fresh Debian machine.

# The architecture to compile for, from a compute capability such as 8.0: 9.0 with all that only it has.
mhar_architecture() {
  sed 's/\.//; s/^90$/90a/' <<<"$1"
}

# Installs the packages named that are missing. Without root, or without apt, it prints the line to run and stops.
mhar_require_packages() {
  command -v dpkg >/dev/null || return 0 # not Debian: CMake will say what it does not find
  local package missing=()
  for package in "$@"; do
    if ! dpkg -s "$package" 2>/dev/null | grep -q '^Status: install ok installed'; then missing+=("$package"); fi
  done
  if ((${#missing[@]} == 0)); then return 0; fi
  if [[ $(id -u) != 0 ]]; then
    echo "Missing packages. As root: apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    return 1
  fi
  echo "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
