#!/usr/bin/env bash
# Builds the program of an earlier commit (ANNEAL_BASE), and upgrades from it to this tree in
# TestRollingUpgrade.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
base=${ANNEAL_BASE:-2410a15}
if ! git cat-file -e "$base^{commit}" 2>/dev/null; then
  echo "Skipped: this checkout has no history with commit $base to upgrade from."
  exit 0
fi
dir=$(mktemp -d)
trap 'git worktree remove --force "$dir/base" 2>/dev/null || true; rm -rf "$dir"' EXIT
git worktree add --quiet --detach "$dir/base" "$base"
(cd "$dir/base" && go build -o "$dir/anneal" ./cmd/anneal)
ANNEAL_UPGRADE_FROM=$dir/anneal go test -count 1 -v -run 'TestRollingUpgrade$' ./cmd/anneal
