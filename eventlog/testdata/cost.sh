#!/usr/bin/env bash
# Compares commands per second (BenchmarkDo, durable) of this tree with those of an earlier commit.
# For each number of clients it runs the two in turn, and prints the medians and two ratios: that of
# the commands per second, and that of commands to bare publishes in the same run, which varies less
# with the speed of the disk. ANNEAL_BASE is the commit, ANNEAL_ROUNDS the number of runs of each.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
base=${ANNEAL_BASE:-aa19932} rounds=${ANNEAL_ROUNDS:-9}
if ! git cat-file -e "$base^{commit}" 2>/dev/null; then
  echo "Skipped: this checkout has no history with commit $base to compare with."
  exit 0
fi
dir=$(mktemp -d)
trap 'git worktree remove --force "$dir/base" 2>/dev/null || true; rm -rf "$dir"' EXIT
git worktree add --quiet --detach "$dir/base" "$base"
(cd "$dir/base" && go test -c -o "$dir/before.test" ./eventlog)
go test -c -o "$dir/after.test" ./eventlog
sync # the programs just built, so that they are not written during a run
for clients in 1 64 256; do
  for round in $(seq "$rounds"); do
    order="before after"
    if ((round % 2 == 0)); then order="after before"; fi
    for which in $order; do
      (cd eventlog && "$dir/$which.test" -test.run '^$' -test.bench "Do/durable/$clients\$" -test.benchtime 1x) |
        awk -v clients="$clients" -v round="$round" -v which="$which" '/^BenchmarkDo/ {
          for (i = 2; i < NF; i++) { if ($(i + 1) == "do/s") does = $i; if ($(i + 1) == "do:raw") share = $i }
          print clients, round, which, does, share
        }' >>"$dir/figures"
    done
  done
done
medians=$(awk '
  { figure[$1, $2, $3] = $4; share[$1, $2, $3] = $5; clients[$1]; if ($2 > rounds) rounds = $2 }
  function median(list, n,   i, j, t) {
    for (i = 2; i <= n; i++) {
      for (j = i; j > 1 && list[j] < list[j - 1]; j--) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
    }
    return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
  }
  END {
    for (c in clients) {
      for (r = 1; r <= rounds; r++) {
        b[r] = figure[c, r, "before"]; a[r] = figure[c, r, "after"]; q[r] = a[r] / b[r]
        s[r] = share[c, r, "after"] / share[c, r, "before"]
      }
      printf "%d %.0f %.0f %.2f %.2f\n", c, median(b, rounds), median(a, rounds), median(q, rounds), median(s, rounds)
    }
  }' "$dir/figures" | sort -n)
printf '%-8s %12s %14s %6s %24s\n' clients "$base do/s" "this tree do/s" ratio "ratio to bare publishes"
printf '%-8s %12s %14s %6s %24s\n' $medians
