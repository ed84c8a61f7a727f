# hpcc: make build | test | test-all | test-kube | test-buildkit | check | demo | bench | docs | install | release | module-path | clean
GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# -E: the binary begins at an entry point of its own (cmd/start/bare).
LDFLAGS = -s -w -E hpcc_start -X main.version=$(VERSION)
# Many tests wait. Twice as many at a time as there are cores take two thirds of the time.
WIDE    := $(shell n=$$((2 * $$(nproc 2>/dev/null || echo 2))); echo -p $$n -parallel $$n)
# The race detector needs a C compiler; a newcomer's machine may have none.
RACE    := $(shell command -v gcc >/dev/null 2>&1 && echo -race)

.PHONY: build test test-all test-kube test-buildkit check demo bench docs install release module-path clean

# hpcc, with the program for images (cmd/start) embedded in place of cmd/hpcc/entry.bin.
# $(1) is the file, $(2) the machine's GOARCH, "" for this one's.
define link
mkdir -p $(dir $(1)) && CGO_ENABLED=0 GOOS=linux GOARCH=$(2) $(GO) build -tags start -trimpath -buildvcs=false -ldflags '-s -w -E hpcc_entry -X main.version=$(VERSION)' -o $(1).entry ./cmd/start && \
printf '{"Replace": {"%s": "%s"}}' "$(CURDIR)/cmd/hpcc/entry.bin" "$(CURDIR)/$(1).entry" >$(1).overlay && \
CGO_ENABLED=0 GOOS=linux GOARCH=$(2) $(GO) build -tags urfave_cli_no_docs,entry -overlay $(1).overlay -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o $(1) ./cmd/hpcc && \
rm $(1).entry $(1).overlay
endef

build:
	$(call link,bin/hpcc,)

# What a change needs before each commit: minutes. docs/development.md lists what it covers.
test:
	$(GO) test -short -count=1 -timeout 60m $(RACE) $(WIDE) ./...

# With the whole-system tests that take long.
test-all:
	$(GO) test -count=1 -timeout 40m $(RACE) ./...

# With a Kubernetes of one node, which needs root; the tests are yours: see the script.
test-kube: build
	testdata/kube/test.sh

# BuildKit's own tests of Dockerfiles, against hpcc.
test-buildkit: build
	$(GO) run ./testdata/buildkit bin/hpcc

check:
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "run gofmt -w on these"; exit 1; }
	$(GO) vet ./...
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...

# Needs nothing but Go: no root, no registry, no scheduler.
demo: build
	$(GO) run ./testdata/demo bin/hpcc

# Measures hpcc and its peers in turn; those that are missing are named and left out.
bench: build
	testdata/bench/run.sh bin/hpcc bin/benchmarks.md

# docs/cli.md comes from the table of the command line, the map in docs/design.md from
# the packages, a part of docs/dockerfile.md from that of Dockerfiles; tests compare them.
docs:
	$(GO) test ./cmd/hpcc -run 'TestDocs|TestDesign|TestBigGANPage' -update
	$(GO) test ./build -run TestTableDocs -update

# The manual pages and completions of the program $(1), below the directory $(2).
define share
$(1) man $(2)/man/man1 && \
mkdir -p $(2)/bash-completion/completions $(2)/zsh/site-functions $(2)/fish/vendor_completions.d && \
$(1) completion bash >$(2)/bash-completion/completions/hpcc && \
$(1) completion zsh >$(2)/zsh/site-functions/_hpcc && \
$(1) completion fish >$(2)/fish/vendor_completions.d/hpcc.fish
endef

install: build
	p=$(DESTDIR)$${PREFIX:-$$HOME/.local} && install -D bin/hpcc $$p/bin/hpcc && $(call share,bin/hpcc,$$p/share)

# Everything that is published, anew, in dist/. docs/development.md lists it.
release: build
	rm -rf dist
	$(MAKE) dist/hpcc-linux-amd64 dist/hpcc-linux-arm64 dist/hpcc-linux-ppc64le
	$(call share,bin/hpcc,dist/share)
	testdata/release/pack.sh "$(VERSION)"

dist/hpcc-linux-%: FORCE
	$(call link,$@,$*)

# Renames the module, here and now: make module-path NEW=example.org/lab/hpcc
module-path:
	$(GO) run ./testdata/modulepath "$(NEW)"

FORCE:

clean:
	rm -rf bin dist
