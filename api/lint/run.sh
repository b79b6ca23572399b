#!/usr/bin/env bash
# Holds the served OpenAPI document against the recommended rules of two
# linters: no error and no warning is allowed. Without npm, or without a way to
# its packages, it says so and is skipped. Usage: api/lint/run.sh FOLDER, where
# the linters are installed once.
set -euo pipefail
rules=$(cd "$(dirname "$0")" && pwd)
folder=$(mkdir -p "$1" && cd "$1" && pwd)
if ! command -v npm >/dev/null; then
	echo "lint-openapi: skipped, because npm is not installed"
	exit 0
fi
cp "$rules/package.json" "$rules/spectral.yaml" "$rules/redocly.yaml" "$folder"
npm_flags="--no-audit --no-fund --no-package-lock --ignore-scripts --loglevel=error"
if ! (cd "$folder" && npm install $npm_flags >/dev/null 2>"$folder/npm.log"); then
	echo "lint-openapi: skipped, because npm could not install the linters: see $folder/npm.log"
	exit 0
fi
go test -count=1 -run 'TestDocumentIsOpenAPI$' "$rules/.." -document "$folder/openapi.json"
cd "$folder"
export REDOCLY_TELEMETRY=off
report=$(node_modules/.bin/redocly lint openapi.json --config redocly.yaml --format=json 2>/dev/null) || true
node -e '
	const report = JSON.parse(process.argv[1]);
	for (const p of report.problems) {
		const at = p.location.map(l => l.pointer).join(" ");
		console.log(`redocly ${p.severity} ${p.ruleId}: ${p.message} (${at})`);
	}
	if (report.totals.errors + report.totals.warnings > 0) process.exit(1);
	console.log("redocly: no error, no warning");
' "$report"
node_modules/.bin/spectral lint openapi.json --ruleset spectral.yaml --fail-severity=warn
