#!/usr/bin/env bash
# Compares commands per second (BenchmarkDo, durable) of this tree with those
# of an earlier commit, by turns, and prints the median of each and of their
# ratio. ANNEAL_BASE is the commit, ANNEAL_ROUNDS how often each runs.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
base=${ANNEAL_BASE:-aa19932} rounds=${ANNEAL_ROUNDS:-5}
if ! git cat-file -e "$base^{commit}" 2>/dev/null; then
  echo "Skipped: this checkout has no history with commit $base to compare with."
  exit 0
fi
dir=$(mktemp -d)
trap 'git worktree remove --force "$dir/base" 2>/dev/null || true; rm -rf "$dir"' EXIT
git worktree add --quiet --detach "$dir/base" "$base"
(cd "$dir/base" && go test -c -o "$dir/before.test" ./eventlog)
go test -c -o "$dir/after.test" ./eventlog
for round in $(seq "$rounds"); do
  order="before after"
  if ((round % 2 == 0)); then order="after before"; fi
  for which in $order; do
    (cd eventlog && "$dir/$which.test" -test.run '^$' -test.bench 'Do/durable' -test.benchtime 1x) |
      awk -v round="$round" -v which="$which" '/^BenchmarkDo/ {
        split($1, name, "/"); sub(/-[0-9]+$/, "", name[3])
        for (i = 2; i < NF; i++) if ($(i + 1) == "do/s") print name[3], round, which, $i
      }' >>"$dir/figures"
  done
done
medians=$(sort -n "$dir/figures" | awk '
  { figure[$1, $2, $3] = $4; clients[$1]; if ($2 > rounds) rounds = $2 }
  function median(list, n,   i, j, t) {
    for (i = 2; i <= n; i++) for (j = i; j > 1 && list[j] < list[j - 1]; j--) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
    return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
  }
  END {
    for (c in clients) {
      for (r = 1; r <= rounds; r++) { b[r] = figure[c, r, "before"]; a[r] = figure[c, r, "after"]; q[r] = a[r] / b[r] }
      printf "%d %.0f %.0f %.3f\n", c, median(b, rounds), median(a, rounds), median(q, rounds)
    }
  }' | sort -n)
echo "clients  $base do/s  this tree do/s  ratio"
printf '%s\n' "$medians"
