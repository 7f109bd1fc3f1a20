# make demo shows what the operator does; make dev leaves a bed up to try things on.
.PHONY: servers demo dev

# Real etcd, Kubernetes, Consul and kwok, built once into .servers.
servers:
	@testbed/servers/build

demo dev: servers
	@cargo build --locked --workspace --bins
	@cargo run --locked --quiet -p testbed --bin bed -- $@
