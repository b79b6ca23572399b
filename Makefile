VERSION := $(shell git describe --always --dirty 2>/dev/null || echo dev)
BUILD   := CGO_ENABLED=0 go build -trimpath -ldflags "-X main.version=$(VERSION)"
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

ANNEAL_FUZZ ?= 20s
ANNEAL_HOSTILE ?= 20s
LISTEN      ?= 127.0.0.1:8080

.PHONY: help demo run test race bench bench-others crash hostile linearizable fuzz lint lint-openapi golden build clients oracle

help: ## show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## build bin/anneal
	$(BUILD) -o bin/anneal ./cmd/anneal

demo: build ## train, deploy and ask models, from an upload to an answer, and transcribe speech, in under two minutes
	bin/anneal demo

run: build ## start a server with a local worker at LISTEN; data lies in ./data
	bin/anneal serve --data data --listen $(LISTEN)

test: ## run the tests
	go test -timeout 20m $(TESTFLAGS) ./...

clients: ## install the clients and tokenizers for JavaScript that tests hold against ours
	npm ci --prefix cmd/anneal/testdata/clients/node --ignore-scripts --no-audit --no-fund
	npm ci --prefix engines/embedded/tokenizer/testdata/published --ignore-scripts --no-audit --no-fund

oracle: ## hold the logits of each family against ggml, which takes a C++ compiler and some minutes
	go -C engines/embedded/oracle test -p 1 -count=1 .

race: ## run the tests under the race detector, the long ones cut short; those of cmd/anneal start programs that it does not watch
	go test -race -short -timeout 20m $$(go list ./... | grep -v '/cmd/anneal$$')

bench: ## measure against the limits of this machine, in one run; BENCHMARKS.md explains
	go test -run '^$$' -bench 'Do|Follow' -benchtime 1x ./eventlog
	go test -run '^$$' -bench 'Rebuild|List|Get' ./projections
	go test -run '^$$' -bench 'Lists' -benchtime 100x ./api
	go test -run '^$$' -bench 'CreateOverHTTP' -benchtime 20x ./api
	go test -run '^$$' -bench 'Gemm|Row' ./engines/embedded/kernel
	go test -run '^$$' -bench . ./engines/embedded/serve ./engines/embedded/train
	go test -run '^$$' -bench 'Gateway' -benchtime 200x ./cmd/anneal
	go test -run '^$$' -bench Listen -benchtime 1x ./engines/sphinx
	@if echo '#include <cblas.h>' | c++ -E - >/dev/null 2>&1; then $(MAKE) --no-print-directory bench-others; \
	else echo "Not compared with ggml and OpenBLAS: that takes a C++ compiler and libopenblas-dev."; fi

bench-others: ## measure the embedded engine by turns with ggml and OpenBLAS, which takes a C++ compiler, libopenblas-dev and some minutes
	if grep -q avx512f /proc/cpuinfo; then export OPENBLAS_CORETYPE=SkylakeX; fi; \
	CGO_CFLAGS="-O3 -march=native" CGO_CXXFLAGS="-O3 -march=native" \
		go -C engines/embedded/oracle test -p 1 -tags openblas -run '^$$' -bench . -benchtime 3s .

linearizable: ## check 100,000 operations of clients for linearizability, with restarts in between
	ANNEAL_OPERATIONS=100000 go test -count=1 -timeout 60m -run TestOperationsAreLinearizable -v ./cmd/anneal

crash: ## kill the control plane 100 times at random points
	ANNEAL_CRASHES=100 go test -count=1 -timeout 60m -run TestControlPlane -v ./cmd/anneal

hostile: ## slow bodies, floods, large bodies and a full disk against a server, ANNEAL_HOSTILE for each (20s); others must be served as fast
	ANNEAL_HOSTILE=$(ANNEAL_HOSTILE) go test -count=1 -timeout 60m -run TestHostile -v ./cmd/anneal

corruption: ## damage a stopped server's folder 1,000 times at random, and start it each time
	ANNEAL_CORRUPTIONS=1000 go test -count=1 -timeout 120m -run TestCorruption -v ./cmd/anneal

cost: ## compare commands per second with those of an earlier commit (ANNEAL_BASE), by turns
	eventlog/testdata/cost.sh

fuzz: ## run every fuzz target, one after another, for ANNEAL_FUZZ each (20s; 10m in a full run)
	@set -e; for at in $$(git grep -l '^func Fuzz' -- '*_test.go'); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z]*\)(.*/\1/p' $$at); do \
			echo "$$target in $$(dirname $$at)"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(ANNEAL_FUZZ) ./$$(dirname $$at); \
		done; \
	done

lint: ## gofmt, go vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...

lint-openapi: ## the served OpenAPI document against redocly's and spectral's recommended rules; skipped without npm
	api/lint/run.sh bin/lint

golden: ## write the golden files anew; read the difference before you commit it
	go test ./domain ./schedulers ./api -update
