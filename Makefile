# Braid: every target sets up what it needs by itself (tools/setup; SETUP=skip leaves that out).
SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: help build build-linted release package package-test demo test test-all page-test screenshots check check-text dependencies advisories verifier kernels bench experiments fuzz fuzz-log model clean
.PHONY: setup setup-rust setup-target setup-bench setup-dependencies setup-kernels setup-package-test setup-release
.PHONY: setup-fuzz setup-model

export PATH := $(HOME)/.cargo/bin:$(PATH)
CARGO := cargo
PYTHON_BIN := .venv/bin
MAINTAINER_SCRIPTS := postinst prerm postrm
SHELL_SCRIPTS := tools/setup tools/end-to-end tools/release tools/secrecy .ci/run fuzz/run fuzz/summary \
	$(addprefix packaging/debian/,build build-sdn $(MAINTAINER_SCRIPTS) $(addprefix sdn/,$(MAINTAINER_SCRIPTS)))
C_SOURCES = $(shell git ls-files '*.c' '*.h')

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

setup:
ifneq ($(SETUP),skip)
	@tools/setup all
endif

setup-rust:
ifneq ($(SETUP),skip)
	@tools/setup rust
endif

setup-target: setup-rust
ifneq ($(SETUP),skip)
	@$(if $(TARGET),tools/setup target $(TARGET))
endif

setup-bench: setup
ifneq ($(SETUP),skip)
	@tools/setup bench
endif

setup-dependencies: setup-rust
ifneq ($(SETUP),skip)
	@tools/setup dependencies
endif

setup-package-test: setup
ifneq ($(SETUP),skip)
	@tools/setup package-test
endif

setup-release: setup
ifneq ($(SETUP),skip)
	@tools/setup release
endif

setup-fuzz: setup
ifneq ($(SETUP),skip)
	@tools/setup fuzz
endif

setup-model: setup-rust
ifneq ($(SETUP),skip)
	@tools/setup model
endif

setup-kernels: setup
ifneq ($(SETUP),skip)
	@tools/setup kernels
endif

# A build with a TARGET is for other machines: *-musl is static, *-gnu wants this glibc or a newer one
# (Debian 11 has it). PROFILE=router is the small one, without the parts that a router has no use for.
GLIBC := 2.31
TARGET ?=
PROFILE ?= release
BUILD := $(CARGO) build $(TARGET:%=--target %)
ifneq ($(filter %-gnu,$(TARGET)),)
BUILD := PATH="$(CURDIR)/.tools/cross/bin:$$PATH" CARGO_ZIGBUILD_CACHE_DIR=$(CURDIR)/.tools/cross/cache \
	$(CARGO) zigbuild --target $(TARGET).$(GLIBC)
endif
PARTS := $(if $(filter router,$(PROFILE)),--package braid --no-default-features --config packaging/router.toml,--bins)
build: setup-rust setup-target ## build the braid binary into target/release; TARGET=…, PROFILE=router
	$(BUILD) --profile $(PROFILE) --locked $(PARTS)

# Without a TARGET this machine's architecture.
package: export TARGET := $(or $(TARGET),$(shell uname -m)-unknown-linux-gnu)
package: ## Debian packages in target/debian; TARGET=aarch64-unknown-linux-gnu and others
	$(MAKE) build
	packaging/debian/build target/$(TARGET)/release/braid target/debian
	packaging/debian/build-sdn target/debian

PACKAGED := x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu
STATIC := x86_64-unknown-linux-musl aarch64-unknown-linux-musl
package-test: setup setup-package-test ## every target and package, on Debian 11, 12 and 13 (root)
	for target in $(PACKAGED); do $(MAKE) package TARGET=$$target || exit 1; done
	for target in $(STATIC); do $(MAKE) build TARGET=$$target && $(MAKE) build TARGET=$$target PROFILE=router && \
		$(CARGO) clippy --workspace --bins --locked --target $$target -- -D warnings || exit 1; done
	$(CARGO) clippy --package braid --no-default-features --locked -- -D warnings
	$(PYTHON_BIN)/pytest packaging/checks

# The version, the changelog's date and the tests come first (CONTRIBUTING.md, "Releases").
VERSION ?=
release: setup setup-release ## packages, checksums, SBOM and tag of this commit; VERSION=x.y.z
	tools/release check $(VERSION)
	for target in $(PACKAGED); do $(MAKE) package TARGET=$$target || exit 1; done
	tools/release files $(VERSION)

demo: setup build ## two emulated uplinks, one page and one bulk load, alone and together (root)
	$(PYTHON_BIN)/braid-lab run demo
	$(PYTHON_BIN)/braid-lab report

# Most end-to-end tests wait, so more of them than there are processors run at once. Experiments fill lines and
# processors, which those that watch the clock would notice: they come by themselves. They wait even more, and in their
# smoke form no figure counts.
TEST_WORKERS ?= 6
export RUST_TEST_THREADS ?= 4
EXPERIMENT_WORKERS ?= 6
# These need Chromium, which the other tests do without: `make bench` has it.
PAGE_TESTS := tests/web/test_page_in_browser.py tests/web/test_fabric_page_in_browser.py tests/lab/test_sites_in_browser.py
EXPERIMENT_TESTS := tests/lab/test_experiments.py
THOROUGH_RUST = $(shell sed -n 's/^crates.* //p' tests/thorough.txt)
END_TO_END := BRAID_BIN=target/debug tools/end-to-end
# Binaries and tests are built together: apart, binaries would have fewer features of tokio and rustix, and these, clap,
# hyper, axum and most of our crates would be built twice. Clippy's compiler builds what it looks at, so nothing is parsed
# and typed twice: 773 s of processor time in place of 1,024. It leaves out some of rustc's own passes, so what users get
# is built without it.
LINTED := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
# A tenth of all building is for the next one, which where CI is set will not be; and nobody waits for the first lint.
ifdef CI
export CARGO_INCREMENTAL := 0
endif
CHECK_JOBS := $(if $(CI),2,1)
RUN_TESTS = $(LINTED) $(PYTHON_BIN)/python tools/rust_tests.py $(if $(BRIEF),$(THOROUGH_RUST:%=--skip %)) && \
	$(END_TO_END) $(BRIEF) tests -n $(TEST_WORKERS) --ignore $(EXPERIMENT_TESTS) $(PAGE_TESTS:%=--ignore %) && \
	$(END_TO_END) $(BRIEF) $(EXPERIMENT_TESTS) -n $(EXPERIMENT_WORKERS)
test: BRIEF := --brief
test: setup-rust ## formatting, lints, types, and every test but those of tests/thorough.txt, in a debug build (root)
	$(MAKE) --no-print-directory --jobs $(CHECK_JOBS) check-text build-linted
	$(RUN_TESTS)

test-all: check build-linted ## the same, and those of tests/thorough.txt (root)
	$(RUN_TESTS)

build-linted: setup-rust
	$(LINTED) $(CARGO) build --workspace --all-targets --locked

page-test: setup-bench build ## in a real browser: the page with faults, logins, keyboard, axe-core; web sites (root)
	$(PYTHON_BIN)/pytest $(PAGE_TESTS)

screenshots: setup-bench build ## pictures of the page into out/screenshots: wide and narrow, light and dark (root)
	BRAID_SCREENSHOTS=out/screenshots BRAID_SCREENSHOT_SECONDS=45 $(PYTHON_BIN)/pytest $(PAGE_TESTS) -k screenshots

check: check-text ## formatting, lints, types, documentation of the crates
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --locked --quiet

# What needs no compiler of Rust.
check-text: setup
	$(CARGO) fmt --all --check
	clang-format --dry-run -Werror $(C_SOURCES)
	$(PYTHON_BIN)/ruff format --check .
	$(PYTHON_BIN)/ruff check .
	$(PYTHON_BIN)/mypy
	$(PYTHON_BIN)/lint-imports --no-logo
	shellcheck --external-sources $(SHELL_SCRIPTS)
	@sha256sum --check --status $(DEPENDENCIES_LOCK) || { echo 'The licences of these dependencies were not looked at:' \
		'run make dependencies, then commit $(DEPENDENCIES_LOCK).' >&2; exit 1; }

# Building what looks takes longer than all other lints, so those of one Cargo.lock are looked at once.
DEPENDENCIES_LOCK := tools/dependencies.lock
dependencies: setup-dependencies ## licences, sources and duplicates of the dependencies, for every change of Cargo.lock
	.tools/bin/cargo-deny --locked check licenses bans sources
	sha256sum Cargo.lock deny.toml >$(DEPENDENCIES_LOCK)

# Asks a database that is fetched, so its answer changes without a change here: no part of the tests.
advisories: setup-dependencies ## known vulnerabilities of the dependencies
	.tools/bin/cargo-deny --locked check advisories

verifier: setup-kernels ## the eBPF programs before the verifiers of other kernels, for every change of bpf/ (root)
	$(CARGO) build --locked -p braid
	BRAID_BIN=target/debug $(PYTHON_BIN)/braid-lab run kernels/verifier

# Names of `braid-lab run kernels/matrix --case`; all of them if it is empty.
KERNELS ?=
ARM64 := aarch64-unknown-linux-musl
kernels: setup-kernels build ## everything once on stock kernels of Debian, booted in virtual machines (root)
	$(if $(or $(filter %-arm64,$(KERNELS)),$(if $(KERNELS),,all)),$(MAKE) build TARGET=$(ARM64))
	$(PYTHON_BIN)/braid-lab run kernels/matrix $(addprefix --case=,$(KERNELS))

bench: setup-bench build ## the short form of every experiment, some 90 s each; pages in a browser (root)
	$(PYTHON_BIN)/braid-lab run all --quick
	$(PYTHON_BIN)/pytest $(PAGE_TESTS)

experiments: setup-bench build ## the long form of every experiment (root)
	$(PYTHON_BIN)/braid-lab run all

FUZZ_SECONDS ?=
FUZZ_HOURS ?=
FUZZ ?=
fuzz: setup setup-fuzz ## feed every parser made-up input, FUZZ_SECONDS (60) each or FUZZ_HOURS of processor time; FUZZ=strangers (nightly Rust)
	FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_HOURS=$(FUZZ_HOURS) fuzz/run $(FUZZ)

fuzz-log: ## processor time and inputs of all runs of `make fuzz`
	@fuzz/summary

model: setup-model ## every state of models of handshakes, tokens, addresses and keys, with an attacker; secrecy by verifpal
	$(CARGO) test --locked -p braid-bond --test model -- --nocapture
	tools/secrecy

clean: ## remove what was built, and what an interrupted lab left behind
	if [ -x $(PYTHON_BIN)/braid-lab ]; then $(PYTHON_BIN)/braid-lab clean; fi
	rm -rf target out .venv .tools
