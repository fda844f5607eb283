# The commands of this project; `make` alone lists them.
# They start a local cluster of their own and ignore KUBECONFIG.

unexport KUBECONFIG
PYTHON ?= python3
.DEFAULT_GOAL := help
.PHONY: help demo demo-down test test-unit test-clients check bench fuzz build fmt sqlx-prepare crds secrets-baseline

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: python ## Start the demo: a local Kubernetes, the operator, a deployment and a real model
	@$(PYTHON) -m tools.demo up

demo-down: ## Stop the demo; keeps packages and caches
	@$(PYTHON) -m tools.demo down

test: python ## Run all checks and all tests
	@$(PYTHON) -m tools.suite test

test-unit: python ## Run the unit tests of Rust and Python and the repository's rules; needs no cluster or database
	@$(PYTHON) -m tools.suite test-unit

test-clients: python ## Test OpenAI's clients, LangChain, LlamaIndex and Vercel's AI SDK against a real model
	@$(PYTHON) -m e2e.clients

check: python ## Check format, lints, repository rules, dependency policy, secrets, spelling and links
	@$(PYTHON) -m tools.suite check

bench: python ## Compare CPU time per request with nginx, haproxy and a minimal relay
	@$(PYTHON) -m e2e.bench path

fuzz: python ## Fuzz every parser of untrusted input for FUZZ_SECONDS (default 60) each
	@$(PYTHON) -m tools.suite.fuzz

build: ## Build the programs into target/release
	cargo build --release --locked --bins -p fastllm-gateway -p fastllm-control -p fastllm-proxy -p fastllm-operator

fmt: ## Format the Rust sources
	cargo fmt --all

sqlx-prepare: ## Regenerate .sqlx, the query metadata for builds without a database
	@$(PYTHON) -m tools.setup postgres
	@$(PYTHON) -m tools.suite.queries

crds: ## Regenerate the YAML of the custom resources from their Rust types
	cargo run --release --locked -p fastllm-operator -- crd > config/crd/fastllmproxies.yaml

secrets-baseline: ## Accept the current findings of the secrets scan
	@$(PYTHON) -m tools.suite.secrets

.PHONY: python
python:
	@command -v $(PYTHON) >/dev/null && $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends --no-remove python3 python3-venv; }
