# `make` lists the targets. Everything that is built for use lies in out/ afterwards.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Debug builds of the daemon and the command: make build PROFILE=dev
PROFILE ?= release
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
HOST := $(shell rustc -vV | sed -n 's/^host: //p')
MUSL := $(HOST:-gnu=-musl)
# The shim starts with every container, so it is static: musl where the target is installed, else
# glibc. tests/env/install.sh has rustup add it, in a target of its own: make expands a whole recipe before its first
# line runs, so a recipe that asks for the target cannot be the one that installs it.
shim_target = $(or $(SHIM_TARGET),$(shell [ -d "$$(rustc --print sysroot)/lib/rustlib/$(MUSL)/lib" ] && echo $(MUSL) || echo $(HOST)))
# Naming the target keeps the flags away from build scripts and procedural macros.
shim_env = RUSTFLAGS="$(RUSTFLAGS) $$(packaging/shim-flags $(shim_target))"
LOGS := $(TARGET_DIR)/test-log
# One build of each crate for all that is built in the profile of tests: features are those of the
# whole workspace, by --examples (there are none) those of its tests, and the crash points, which
# tests/faults wants and which do nothing where no file of root's names one.
AS_TESTS := --locked --workspace --examples --features mpsgate-shim/crash-points,mpsgate-daemon/crash-points
CARGO_DENY := $(or $(shell command -v cargo-deny),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/mpsgate/bin/cargo-deny)

.PHONY: help house install-build install-release build man docs packages krew demo test test-build test-unit test-e2e test-crun test-differential test-engines test-k8s test-hosts test-vm test-packages test-gpu test-release test-image test-chart chart-manifests test-all test-faults test-bench test-restarts gpu-pack soak fuzz bench bench-scheduler dist release lint fmt clippy deny shellcheck prose clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

build: install-build ## build everything into out/: shim, hook and gate static, daemon, command, fakes
	@echo "shim, hook and gate: $(shim_target), profile shim"
	@$(shim_env) cargo build -q --locked -p mpsgate-shim --profile shim --target $(shim_target)
	@$(shim_env) cargo build -q --locked -p mpsgate-gate --profile shim --target $(shim_target)
	@$(shim_env) cargo build -q --locked -p mpsgate-escape -p mpsgate-differential --profile shim --target $(shim_target)
	@echo "daemon, command and fakes: profile $(PROFILE)"
	@cargo build -q --locked -p mpsgate-daemon -p mpsgate-cli -p mpsgate-inspect -p mpsgate-scheduler -p fake-nvml -p fake-mps-control -p cuda-client --profile $(PROFILE)
	@mkdir -p out/fakes
	@install -t out $(addprefix $(TARGET_DIR)/$(shim_target)/shim/,mpsgate-runtime mpsgate-hook mpsgate-gate)
	@install -t out $(addprefix $(TARGET_DIR)/$(PROFILE:dev=debug)/,mpsgated mpsgate mpsgate-scheduler kubectl-inspect-cgpu)
	@install $(TARGET_DIR)/$(PROFILE:dev=debug)/libnvidia_ml.so out/fakes/libnvidia-ml.so.1
	@install -t out/fakes $(addprefix $(TARGET_DIR)/$(shim_target)/shim/,escape-try differential)
	@cc -O1 -shared -fPIC -o out/fakes/libcuda.so.1 tests/fakes/cuda/libcuda.c
	@install -t out/fakes $(addprefix $(TARGET_DIR)/$(PROFILE:dev=debug)/,nvidia-cuda-mps-control nvidia-cuda-mps-server cuda-client)
	@ls -l out out/fakes | awk 'NF > 8 && !/^d/ { printf "  %9d  %s\n", $$5, $$9 }'

install-build install-release: install-%:
	@tests/env/install.sh $*

man: ## manual pages and completions into out/man and out/completions
	@cargo build -q $(AS_TESTS) --bin mpsgate-pages
	@$(TARGET_DIR)/debug/mpsgate-pages out
	@install -m 644 -t out/man packaging/man/*.8
	@ls out/man out/completions

docs: ## the pages as a book with search, into out/book/html (mdbook)
	@tests/env/install.sh docs
	@packaging/book/build

packages: PROFILE = dist
packages: $(if $(OUT),,build man) ## deb and rpm for this machine into out/packages; OUT=out/dist: of what make dist left (VERSION=, SOURCE_DATE_EPOCH=)
	@tests/env/install.sh packages
	@packaging/build

krew: ## the plugin of kubectl for krew: manifest and archives into out/krew, of what make dist left in out/dist and out/dist-aarch64
	@packaging/krew/build

demo: build ## show it: real runc containers that share a card, and what is refused (root)
	@tests/env/install.sh demo
	@tests/demo/demo.sh

test: build ## all tests; without root what can run, naming what is skipped
	@tests/env/install.sh test || true
	@tests/env/test.sh $(LOGS)

test-build: build man ## all that tests run, compiled: others test on it by make -o build -o man
	@cargo build -q $(AS_TESTS) --bins
	@cargo test -q $(filter-out --examples,$(AS_TESTS)) --no-run --lib --bins --tests

test-unit: ## unit, property and contract tests (no root)
	@tests/env/unit.sh $(LOGS)

test-e2e: ## end to end on runc and Docker 20.10, the suite first without mpsgate (root; after build)
	@mkdir -p $(LOGS)
	@tests/e2e/run 2>&1 | tee $(LOGS)/e2e.log

test-engines: ## one suite on each engine and version (root; after build; MG_CELLS="ci" or names: tests/engines/run --list)
	@tests/env/install.sh engines
	@mkdir -p $(LOGS)
	@tests/engines/run 2>&1 | tee $(LOGS)/engines.log

test-hosts: ## hosts without Kubernetes: plain processes, Compose, JupyterHub, Slurm (root; after build; HOSTS=files)
	@tests/env/install.sh hosts $(if $(HOSTS)$(filter ci,$(MG_SELECT)),,jupyterhub)
	@mkdir -p $(LOGS)
	@tests/hosts/run $(HOSTS) 2>&1 | tee $(LOGS)/hosts.log

test-k8s: ## a real Kubernetes on this machine: $MPSGATE_K8S_BIN's, else 1.20, built once in ten minutes (root; after build)
	@tests/env/install.sh k8s chart
	@mkdir -p $(LOGS)
	@tests/k8s/run 2>&1 | tee $(LOGS)/k8s.log

test-vm: man ## the same in a whole Debian machine: systemd, cgroup v2, crun, Podman, Docker 26, the packages (root; after build)
	@mkdir -p $(LOGS)
	@tests/vm/run $(VM) 2>&1 | tee $(LOGS)/vm$(addprefix -,$(MG_VM_SUITE)).log

test-packages: man ## the packages: same bytes twice, installed, upgraded, removed in fresh Debian roots, linted (root; after build)
	@mkdir -p $(LOGS)
	@tests/packages/run 2>&1 | tee $(LOGS)/packages.log

test-gpu: ## the script for GPU machines, tests/gpu/run, on fakes of all that it needs there (root; after build)
	@mkdir -p $(LOGS)
	@tests/e2e/run tests/gpu/dry.bats 2>&1 | tee $(LOGS)/gpu.log

test-release: ## what a release is made with: floors, changelog, sums, same bytes twice; and how tests are counted (no root; after build)
	@mkdir -p $(LOGS)
	@bats --formatter tap tests/env tests/release 2>&1 | tee $(LOGS)/release.log

test-image: ## packaging/container's image, built and run by Podman without a registry (root; after build)
	@tests/env/install.sh test
	@mkdir -p $(LOGS)
	@bats --formatter tap tests/container 2>&1 | tee $(LOGS)/image.log

test-chart: ## packaging/kubernetes: the chart rendered, checked against the schemas of Kubernetes 1.25 to 1.37 (no root; after build)
	@tests/env/install.sh chart || true
	@mkdir -p $(LOGS)
	@bats --formatter tap tests/chart 2>&1 | tee $(LOGS)/chart.log

chart-manifests: ## the chart's plain manifests into out/kubernetes/mpsgate.yaml (IMAGE=registry/repository, VALUES=file, KUBE_VERSION=1.36.0: of the cluster)
	@tests/env/install.sh chart
	@mkdir -p out/kubernetes
	@"$$(tests/env/install.sh chart-tools)/bin/helm" template mpsgate packaging/kubernetes/chart --namespace mpsgate-system \
	  $(if $(IMAGE),--set-string image.repository=$(IMAGE)) $(if $(VALUES),--values $(VALUES)) $(if $(KUBE_VERSION),--kube-version $(KUBE_VERSION)) >out/kubernetes/mpsgate.yaml.new
	@mv out/kubernetes/mpsgate.yaml.new out/kubernetes/mpsgate.yaml
	@echo out/kubernetes/mpsgate.yaml

test-all: build man ## after make test: the long ones, each with its minutes, and the sum of all (root; MG_SELECT=ci: a part, MG_SELECT=nightly: the rest)
	@tests/env/all.sh $(LOGS)
	@tests/env/tally.sh $(LOGS)

test-crun: ## end to end on Debian's crun and cgroup v2 alone, on this machine as it is (root; after build)
	@tests/env/install.sh test
	@mkdir -p $(LOGS)
	@tests/e2e/on-crun 2>&1 | tee $(LOGS)/crun.log

test-differential: ## generated documents on real runc and through mpsgate: 5,000 (root; after build; MG_SEED=N repeats)
	@mkdir -p $(LOGS)
	@MG_DOCUMENTS=$(or $(MG_DOCUMENTS),5000) BATS_TEST_TIMEOUT=3600 tests/e2e/run tests/e2e/differential.bats 2>&1 | tee $(LOGS)/differential.log

test-faults: ## kill the product at every crash point, restart it 100 times (root; after build; MG_SEED=N repeats)
	@mkdir -p $(LOGS)
	@tests/faults/run points 2>&1 | tee $(LOGS)/faults.log
	@tests/faults/run restarts 100 2>&1 | tee $(LOGS)/faults-restarts.log

test-bench: ## the gate's part of the bench, as short as it can be: that it ends and prints figures, whatever they are (root; after build)
	@tests/env/install.sh test
	@mkdir -p $(LOGS)
	@BATS_TEST_TIMEOUT=900 bats --formatter tap --print-output-on-failure tests/bench 2>&1 | tee $(LOGS)/bench.log

test-restarts: ## mpsgated, gate and holder restarted 100 times each under clients that attach all the time (root; after build; MG_RESTARTS=N)
	@mkdir -p $(LOGS)
	@MG_RESTARTS=$(or $(MG_RESTARTS),100) BATS_TEST_TIMEOUT=3600 tests/e2e/run tests/e2e/mps_gate.bats 2>&1 | tee $(LOGS)/restarts.log

gpu-pack: build ## all that tests/gpu/run needs on a GPU machine without network, into out/gpu
	@tests/gpu/pack

soak: build ## 10,000 container lives with kills at random (root; MG_SOAK_CYCLES=N, MG_SEED=N; not part of CI)
	@tests/env/install.sh test
	@tests/faults/run soak $(or $(MG_SOAK_CYCLES),10000)

fuzz: ## fuzz every parser of foreign bytes for FUZZ_SECONDS=60 each (nightly Rust; not part of CI)
	@tests/fuzz/run

bench: build ## what the shim and the hook cost, as ratios to a program that only execs (root)
	@tests/bench/run

bench-scheduler: ## latency, memory and packing of mpsgate-scheduler with 5,000 nodes and 100,000 pods (ARGS='--trace NODES.csv PODS.csv')
	@tests/env/install.sh build
	@cargo build -q --locked --release -p mpsgate-scheduler
	@cargo run -q --locked --release -p mpsgate-bench --bin mpsgate-bench-scheduler -- $(ARGS)

dist: man install-release ## the programs as they are shipped, for every distribution of docs/install.md, into out/dist (ARCH=aarch64: out/dist-aarch64)
	@SHIM_TARGET="$(shim_target)" packaging/dist $(ARCH)

release: ## a release of the committed version into out/release, amd64 and arm64: packages, archive, checksums, SBOM, changelog
	@tests/env/install.sh release
	@packaging/release

lint: fmt clippy deny shellcheck prose ## format, lints with warnings denied, dependency rules, shell scripts, widths and words

fmt: ## is everything formatted?
	@cargo fmt --all --check

clippy: install-build ## lints, warnings denied; the shim and the benchmark's yardsticks also for the shim's target
	@cargo clippy -q $(AS_TESTS) --all-targets -- -D warnings
	@cargo clippy -q --locked -p mpsgate-shim --target $(shim_target) -- -D warnings
	@cargo clippy -q --locked --no-deps -p mpsgate-bench --no-default-features --bin exec-floor --bin stand-in-runtime --target $(shim_target) -- -D warnings

deny: ## licences, sources, advisories, and who may use what (deny.toml)
	@tests/env/install.sh lint
	@tests/env/deny.sh $(CARGO_DENY)

shellcheck: ## the shell scripts and the .bats files
	@tests/env/install.sh lint
	@grep -rlE --exclude-dir=target --exclude-dir=.git '^#!.*[/ ](ba)?(sh|ts)$$|shellcheck shell=' $(wildcard .ci deb packaging rpm tests) | xargs -n 16 -P "$$(nproc)" shellcheck

prose: ## the width of comments, the words of docs/glossary.md, which tests have other settings than shipped, and whether docs/rights.md is true
	@tests/env/install.sh lint
	@tests/env/prose.py --self-test
	@tests/env/prose.py
	@tests/env/settings.py --self-test
	@tests/env/settings.py >/dev/null || { tests/env/settings.py | grep ^settings: >&2; false; }
	@tests/env/rights.py --self-test
	@tests/env/rights.py --check
	@tests/env/house.py --self-test

house: ## how large the code is and how tidy, by row; AGAINST=COMMIT: before, after, and what only moved; LIST=WORD: where
	@tests/env/house.py $(if $(AGAINST),--against $(AGAINST)) $(if $(LIST),--list '$(LIST)')

clean: ## remove what was built
	@cargo clean -q
	@rm -rf out
