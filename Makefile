VERSION := $(shell git describe --always --dirty 2>/dev/null || echo dev)
BUILD   := CGO_ENABLED=0 go build -trimpath -ldflags "-X main.version=$(VERSION)"
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

ANNEAL_FUZZ ?= 20s
ANNEAL_HOSTILE ?= 20s
ANNEAL_FAULTS ?= 50
ANNEAL_SEED ?= 0
ANNEAL_SEEDS ?= 10000
RACE_SKIP   ?= /cmd/anneal$$
RACE_SKIP_TESTS ?= ^$$
LISTEN      ?= 127.0.0.1:8080

.PHONY: help demo run test race corruption outages cost bench bench-addons bench-autoscale bench-gateway \
	bench-jobs bench-others bench-placement bench-queue crash faults hostile kind linearizable simulation fuzz lint \
	lint-openapi golden reference build clients console console-million console-screens oracle \
	oidc partitions schemas transparency upgrade examples

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## build bin/anneal
	$(BUILD) -o bin/anneal ./cmd/anneal

demo: build ## train, deploy and query models, and transcribe speech, in under two minutes
	bin/anneal demo

run: build ## start a server with a local worker at LISTEN; data is stored in ./data
	bin/anneal serve --data data --listen $(LISTEN)

test: ## run the tests
	go test -timeout 20m $(TESTFLAGS) ./...

clients: ## install the JavaScript clients and tokenizers that tests compare with ours
	npm ci --prefix cmd/anneal/testdata/clients/node --ignore-scripts --no-audit --no-fund
	npm ci --prefix engines/embedded/tokenizer/testdata/published --ignore-scripts --no-audit --no-fund

bench-placement: ## replay the 17 published placement traces with all policies (20 minutes), and measure decisions
	ANNEAL_PLACEMENT=full go test -count=1 -timeout 120m -v -run 'TestPublishedTraces|TestDepartures' -bench . \
		./schedulers/placement
	go test -run '^$$' -bench Plan ./schedulers

oracle: ## compare the logits of each family with ggml; needs a C++ compiler and some minutes
	go -C engines/embedded/oracle test -p 1 -count=1 .

transparency: ## run Tessera's fsck and the witness of transparency-dev, unmodified, against the log's tree
	go -C eventlog/transparency/compat test -count=1 .

oidc: ## log users in at the provider of zitadel/oidc, unmodified, through the command line and the console
	go -C api/oidc/compat test -count=1 .

console: ## test the console in Chromium (package chromium), with the rules of axe-core
	npm ci --prefix api/console/browser/testdata --ignore-scripts --no-audit --no-fund
	go -C api/console/browser test -count=1 -v -timeout 20m .

console-screens: ## write docs/console/screens, pictures of all screens of the console (ffmpeg; some minutes)
	npm ci --prefix api/console/browser/testdata --ignore-scripts --no-audit --no-fund
	shots=$$(mktemp -d) && ANNEAL_SCREENSHOTS=$$shots go -C api/console/browser test -count=1 -timeout 1h \
		-run TestScreens . && api/console/browser/testdata/sheets.sh $$shots docs/console/screens && rm -r $$shots

console-million: ## turn pages of 1,000,000 datasets in Chromium (some 15 minutes)
	ANNEAL_RESOURCES=$(or $(ANNEAL_RESOURCES),1000000) go -C api/console/browser test -count=1 -v -timeout 3h \
		-run TestPaging .

examples: ## test the example of a program that forwards events to Kafka
	go -C examples/kafka test -count=1 .

race: ## run the tests under the race detector, shortened; cmd/anneal's start programs that it does not watch
	go test -race -short -timeout 20m -skip '$(RACE_SKIP_TESTS)' $$(go list ./... | grep -v -E '$(RACE_SKIP)')

bench: ## measure against the limits of this machine, and replay all traces (see BENCHMARKS.md; about an hour)
	go test -run '^$$' -bench 'Do|Follow|Tree' -benchtime 1x ./eventlog
	go test -run '^$$' -bench . -benchtime 1x ./eventlog/transparency
	go test -run '^$$' -bench 'Rebuild|List|Get' ./projections/...
	go test -run '^$$' -bench 'ViewAt' -benchtime 20x ./projections
	go test -run '^$$' -bench 'Cost' -benchtime 1x ./projections
	go test -run '^$$' -bench Day -benchtime 1x ./schedulers/replay
	go test -run '^$$' -bench 'Lists' -benchtime 100x ./api
	go test -run '^$$' -bench 'CreateOverHTTP' -benchtime 20x ./api
	go test -run '^$$' -bench 'Gemm|Row' ./engines/embedded/kernel
	go test -run '^$$' -bench . ./engines/embedded/serve ./engines/embedded/train
	go test -run '^$$' -bench 'Gateway' -benchtime 200x ./cmd/anneal
	go test -run '^$$' -bench 'Choose' -benchtime 5000x ./api/routing/balance
	go test -run '^$$' -bench 'Start' -benchtime 3x ./cmd/anneal
	go test -run '^$$' -bench Transcribe -benchtime 1x ./engines/sphinx
	@if echo '#include <cblas.h>' | c++ -E - >/dev/null 2>&1; then $(MAKE) --no-print-directory bench-others; \
	else echo "Not compared with ggml and OpenBLAS: install a C++ compiler and libopenblas-dev."; fi
	@$(MAKE) --no-print-directory bench-queue bench-autoscale bench-placement

bench-jobs: ## compare jobs with River on PostgreSQL (package postgresql), and measure heartbeats of 10,000 nodes
	ANNEAL_SCALE=4 go -C schedulers/bench test -count=1 -timeout 60m -v -run 'TestJobs|TestHeartbeats' .

bench-gateway: ## replay the Mooncake trace with the gateway's routing, and compare it with real engines (some minutes)
	ANNEAL_GATEWAY=full go test -count=1 -timeout 60m -v -run 'TestMooncake|TestTwoGateways|TestNeighbours|TestSpeed' \
		./api/routing/twin
	ANNEAL_GATEWAY=full go test -count=1 -timeout 60m -v -run TestRealEngines ./api/routing/balance
	ANNEAL_GATEWAY=full go test -count=1 -v -run TestCostOf ./api ./workers/coordinator

bench-addons: ## serve 1,000 adapters with four replicas of the embedded engine that each have 64 loaded (a minute)
	ANNEAL_ADDONS=full go test -count=1 -v -run TestManyAddons ./workers/agent

bench-queue: ## replay the Philly trace through the queue, in the scenarios of BENCHMARKS.md (some minutes)
	go test -timeout 60m -run '^$$' -bench Philly -benchtime 1x ./schedulers/queue

bench-autoscale: ## replay public traces through the autoscaler and compare it with others; takes some 10 minutes
	ANNEAL_AUTOSCALE=full go test -count=1 -timeout 60m -run TestAutoscaleReplaysTraces -v ./schedulers

bench-others: ## compare the embedded engine with ggml and OpenBLAS; needs a C++ compiler and libopenblas-dev
	if grep -q avx512f /proc/cpuinfo; then export OPENBLAS_CORETYPE=SkylakeX; fi; \
	CGO_CFLAGS="-O3 -march=native" CGO_CXXFLAGS="-O3 -march=native" \
		go -C engines/embedded/oracle test -p 1 -tags openblas -run '^$$' -bench . -benchtime 3s .

linearizable: ## check 100,000 operations for linearizability, with restarts in between
	ANNEAL_OPERATIONS=100000 go test -count=1 -timeout 60m -run TestOperationsAreLinearizable -v ./cmd/anneal

faults: ## cut off, pause and kill NATS servers, control planes and workers under load, for ten minutes; needs root
	ANNEAL_FAULTS=$(ANNEAL_FAULTS) go test -count=1 -timeout 30m -run 'TestFaults$$' -v ./cmd/anneal

simulation: ## simulate ANNEAL_SEEDS (10000) hours of rival control planes with faults, from ANNEAL_SEED on; some hours
	ANNEAL_SEED=$(ANNEAL_SEED) ANNEAL_SEEDS=$(ANNEAL_SEEDS) GOGC=800 go test -count=1 -timeout 24h \
		-run 'TestRivals$$' ./schedulers

crash: ## kill the control plane 100 times at random points, also while it delivers and meters, and cut restores
	ANNEAL_CRASHES=100 go test -count=1 -timeout 60m -run TestControlPlane -v ./cmd/anneal
	ANNEAL_SUBSCRIPTION_KILLS=100 go test -count=1 -timeout 60m -run TestSubscriptionsSurviveKills -v ./cmd/anneal
	ANNEAL_KILLS=100 go test -count=1 -timeout 60m -run TestUsageIsRecordedExactlyOnce -v ./eventlog/natsserver
	ANNEAL_USAGE_KILLS=100 go test -count=1 -timeout 60m -run TestUsageIsExactThroughKills -v ./cmd/anneal
	ANNEAL_RESTORE_CUTS=1 go test -count=1 -timeout 60m -run TestInterruptedRestoresToAClusterContinue -v ./internal/backup

outages: ## stop NATS for an hour in all, under load, and compare the metered usage with the answers; two hours
	ANNEAL_OUTAGES=120 ANNEAL_OUTAGE_SECONDS=40 go test -count=1 -timeout 5h -run TestUsageIsExactThroughOutages -v \
		./cmd/anneal

hostile: ## attack a server with slow bodies, floods, large bodies and a full disk, ANNEAL_HOSTILE each (20s)
	ANNEAL_HOSTILE=$(ANNEAL_HOSTILE) go test -count=1 -timeout 60m -run TestHostile -v ./cmd/anneal

corruption: ## damage a stopped server's directory 1,000 times at random, and start it each time
	ANNEAL_CORRUPTIONS=1000 go test -count=1 -timeout 120m -run 'TestCorruption|TestLossesAreExact' -v \
		./internal/server ./eventlog/natsserver

partitions: ## simulate a log of several streams with ANNEAL_EVENTS events (1000000000; 20 minutes on one core)
	ANNEAL_EVENTS=$(or $(ANNEAL_EVENTS),1000000000) go test -count=1 -timeout 5h -run TestLogOfSeveralStreams -v ./eventlog

cost: ## compare commands per second with an earlier commit (ANNEAL_BASE), alternating
	eventlog/testdata/cost.sh

kind: ## add the example kind of CONTRIBUTING.md to a copy of the source, and use it over HTTP
	ANNEAL_KIND=1 go test -count=1 -timeout 30m -run TestContributing -v ./cmd/anneal

upgrade: ## upgrade two control planes and a worker from an earlier commit (ANNEAL_BASE), one by one, under load
	cmd/anneal/testdata/upgrade.sh

schemas: ## write texts by 100,000 random JSON schemas, with several vocabularies (some minutes)
	ANNEAL_SCHEMAS=100000 go test -count=1 -timeout 60m -run 'TestRandomSchemas|TestTokensOfSeveralBytes' -v \
		./engines/embedded/grammar

fuzz: ## run every fuzz target in sequence, ANNEAL_FUZZ each (20s; 10m in a full run)
	@set -e; for at in $$(git grep -l '^func Fuzz' -- '*_test.go'); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z]*\)(.*/\1/p' $$at); do \
			echo "$$target in $$(dirname $$at)"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(ANNEAL_FUZZ) ./$$(dirname $$at); \
		done; \
	done

lint: ## gofmt, go mod tidy, go vet, staticcheck, words and lines
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	for mod in $$(git ls-files go.mod '*/go.mod'); do go -C $$(dirname $$mod) mod tidy -diff || exit 1; done
	go vet ./...
	go run $(STATICCHECK) ./...
	go test -count=1 -run '^Test(Language|Layout|Glossary|CommentsReferToFiles)$$' .

lint-openapi: ## check the OpenAPI document with redocly and spectral; skipped without npm
	api/lint/run.sh bin/lint

golden: ## write the golden files; read the difference before you commit it
	go test -timeout 20m ./domain ./schedulers ./schedulers/replay ./api ./eventlog/schemas -update

reference: ## write docs/reference and docs/clients.md from the code
	go test ./cmd/anneal -run '^(TestReference|TestClientsPage)$$' -update
