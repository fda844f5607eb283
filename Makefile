# The commands of this project. `make` alone lists them.
# KUBECONFIG never redirects any of them: they use a local cluster of their own.

unexport KUBECONFIG
PYTHON ?= python3
.DEFAULT_GOAL := help
.PHONY: help demo demo-down test test-clients check bench fuzz build fmt sqlx-prepare crds secrets-baseline

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: python ## a local Kubernetes with operator, deployment and a real model; stays up
	@$(PYTHON) -m tools.demo up

demo-down: ## stops the demo; packages and caches stay
	@$(PYTHON) -m tools.demo down

test: python ## every check and every test, with the counts at the end
	@$(PYTHON) -m tools.suite test

test-clients: python ## OpenAI's clients, LangChain, LlamaIndex, Vercel's AI SDK through both planes to a real model
	@$(PYTHON) -m e2e.clients

check: python ## format, lints, dependency policy, borders, secrets, links
	@$(PYTHON) -m tools.suite check

bench: python ## CPU a request beside nginx, haproxy and a bare relay, on this machine
	@$(PYTHON) -m e2e.bench path

fuzz: python ## every parser of outside bytes, FUZZ_SECONDS (60) each, one a core at a time
	@$(PYTHON) -m tools.suite.fuzz

build: ## the programs, into target/release
	cargo build --release --locked --workspace --bins

fmt: ## formats the Rust sources
	cargo fmt --all

sqlx-prepare: ## writes .sqlx, the query data that builds use instead of a database
	@$(PYTHON) -m tools.setup postgres
	@$(PYTHON) -m tools.suite.queries

crds: ## writes the YAML of the custom resources from their Rust types
	cargo run --release --locked -p fastllm-operator -- crd > config/crd/fastllmproxies.yaml

secrets-baseline: ## accepts what the secrets scan finds now
	@$(PYTHON) -m tools.suite.secrets

.PHONY: python
python:
	@command -v $(PYTHON) >/dev/null && $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends --no-remove python3 python3-venv; }
