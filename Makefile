# hpcc: make build | test | test-all | test-kube | test-buildkit | check | demo | bench | bench-scale | docs | install | release | clean
GO      ?= go
# The version in the file VERSION, with the commit unless that has a tag.
VERSION ?= $(shell cat VERSION)$(shell git describe --tags --exact-match >/dev/null 2>&1 || git describe --always --dirty --exclude '*' 2>/dev/null | sed 's/^/+/')
# -E sets the ELF entry point to hpcc's own (cmd/start/bare).
LDFLAGS = -s -w -E hpcc_start -X main.version=$(VERSION)
# Many tests wait, so running twice as many as there are cores takes two thirds of the time.
TWICE   := $(shell echo $$((2 * $$(nproc 2>/dev/null || echo 2))))
# The race detector needs a C compiler, which may be missing.
RACE    := $(shell command -v gcc >/dev/null 2>&1 && echo -race)

.PHONY: build test test-all test-alone test-shared test-kube test-buildkit check demo bench bench-scale docs install release clean

# Builds hpcc with an embedded entry program for images (cmd/start), which replaces
# cmd/hpcc/entry.bin. $(1) is the output file, $(2) the GOARCH, or "" for that of this machine.
define link
mkdir -p $(dir $(1)) && CGO_ENABLED=0 GOOS=linux GOARCH=$(2) $(GO) build -tags start -trimpath -buildvcs=false -ldflags '-s -w -E hpcc_entry -X main.version=$(VERSION)' -o $(1).entry ./cmd/start && \
printf '{"Replace": {"%s": "%s"}}' "$(CURDIR)/cmd/hpcc/entry.bin" "$(CURDIR)/$(1).entry" >$(1).overlay && \
CGO_ENABLED=0 GOOS=linux GOARCH=$(2) $(GO) build -tags urfave_cli_no_docs,entry -overlay $(1).overlay -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o $(1) ./cmd/hpcc && \
rm $(1).entry $(1).overlay
endef

build:
	$(call link,bin/hpcc,)

# Run this before each commit. Go's cache answers for packages that have not changed. With CI=true, as in
# .ci/run, it is test-all. docs/development.md lists what it covers.
test:
	$(if $(CI),$(MAKE) test-all,$(GO) test -short -parallel $(TWICE) -p $(TWICE) ./...)

# Includes the slow tests, and skips those whose programs or services this machine lacks.
test-all:
	$(MAKE) -j 2 test-alone test-shared

# Packages whose goroutines share data, which are tested with the race detector. It makes tests ten times
# slower; "go test -race -short ./build ./conda" takes minutes.
SHARED := $(addprefix hpcc/,build/source files front/kernel job/kube job/local job/node job/pack job/results job/sshd job/tunnel metrics metrics/report runtime runtime/probe runtime/process store unpack unpack/squashfs web)

test-alone:
	$(GO) test -count=1 -timeout 60m -p $(TWICE) $(filter-out $(SHARED),$(shell $(GO) list ./...))

test-shared:
	$(GO) test -count=1 -timeout 60m $(RACE) -p 2 $(SHARED)

# Starts a one-node Kubernetes as root, and runs the tests as an ordinary user; see the script.
test-kube: build
	testdata/clusters/kube/test.sh

# BuildKit's own tests of Dockerfiles, against hpcc.
test-buildkit: build
	$(GO) run ./testdata/corpora/buildkit bin/hpcc

check:
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "run gofmt -w on these"; exit 1; }
	$(GO) vet ./...
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...

# Needs only Go: no root, registry or scheduler.
demo: build
	$(GO) run ./testdata/demo bin/hpcc

# Compares hpcc with other tools. It reports missing tools and leaves them out.
bench: build
	testdata/benchmarks/run.sh bin/hpcc bin/benchmarks.md

# Measures hpcc on a slow shared file system, which it simulates; see the program.
bench-scale: build
	$(GO) run ./testdata/benchmarks/slow bin/hpcc bin/scale.md

# Generates docs/cli.md from the flags, docs/options.md from the table of TestEffects, the map in
# docs/design.md from the packages, docs/biggan.md from testdata/corpora/biggan, and the table in
# docs/dockerfile.md from testdata/corpora/dockerfile. Tests check that they are up to date.
docs:
	$(GO) test ./cmd/hpcc -run 'TestDocs|TestDesign|TestBigGANPage|TestEffectsPage' -update
	$(GO) test ./build -run TestTableDocs -update

# Writes the manual pages and completions of the program $(1) below the directory $(2).
define share
$(1) man $(2)/man/man1 && \
mkdir -p $(2)/bash-completion/completions $(2)/zsh/site-functions $(2)/fish/vendor_completions.d && \
$(1) completion bash >$(2)/bash-completion/completions/hpcc && \
$(1) completion zsh >$(2)/zsh/site-functions/_hpcc && \
$(1) completion fish >$(2)/fish/vendor_completions.d/hpcc.fish
endef

install: build
	p=$(DESTDIR)$${PREFIX:-$$HOME/.local} && install -D bin/hpcc $$p/bin/hpcc && $(call share,bin/hpcc,$$p/share)

# Recreates dist/ with all files of a release; docs/development.md lists them.
release: build
	rm -rf dist
	$(MAKE) dist/hpcc-linux-amd64 dist/hpcc-linux-arm64 dist/hpcc-linux-ppc64le
	$(call share,bin/hpcc,dist/share)
	testdata/tools/release/pack.sh "$(VERSION)"

dist/hpcc-linux-%: FORCE
	$(call link,$@,$*)

FORCE:

clean:
	rm -rf bin dist
