#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every test that docs/testing.md cites, as a name in backquotes of the form `layer: what holds`, exists.
. "$(dirname "$0")/common.sh"
cd "$root"
names=$(grep -rhoE '(TEST_CASE(_TEMPLATE)?|MHAR_SWEEP[A-Z_]*)\(.*|^ *"[a-z_]+: .*|MHAR_TEST_WHERE "[^"]*"|mhar_add_project_test\("[^"]*"' tests |
  sed -E 's/MHAR_TEST_WHERE "/"device: /; s/mhar_add_project_test\("/"project: /')
names+=$'\n'$(grep -rhoE 'MHAR_TEST_WHERE "[^"]*"' tests | sed 's/MHAR_TEST_WHERE "/"cpu: /')
missing=0
while read -r cited; do
  if ! grep -qF "\"$cited" <<<"$names"; then
    echo "docs/testing.md cites a test that does not exist: $cited"
    missing=$((missing + 1))
  fi
done < <(grep -oE '`[a-z_ ]+: [^`]+`' docs/testing.md | tr -d '`')
((missing == 0))
