# Everything a person does here, by name. The logic is in lab/; the recipes only call it.
PYTHON := .venv/bin/python
CONTEXT ?=
REGISTRY ?=
KEY ?=
PROMETHEUS ?=
export CONTEXT REGISTRY
# uv leaves dependencies uncompiled. Where bytecode may not be written, each process that imports torch compiles it again: 10 s.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo generate check admission restarts isolation surfaces operate harmless faults model test test-all bench-trainer bench-operator cluster-up cluster-down cluster-status images push install release release-verify krew lock clean clean-cache

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv hold what the lock says (done by the others where they need it)
	@lab/setup/bootstrap.sh

demo: setup ## Show the product at work; CONTEXT=name for a cluster you have, REGISTRY=host/path for its images
	@$(PYTHON) -m lab.demo

generate: setup ## Make the CRDs, their copies, docs/reference and the plain manifests again from their sources
	@$(PYTHON) manifests/generate.py

check: setup ## Style, types, architecture, generated files, quick unit tests (about a minute, warm)
	@$(PYTHON) -m lab.suite check

admission: setup ## Judge admission by its corpus of pods, and what outlives policies; also on an older minor; writes build/admission.json (about 12 minutes)
	@$(PYTHON) -m lab.admission

restarts: setup ## Restart every kind on the full cluster, kill leaders meanwhile, predict emergencies of fleets drawn by SEED; writes build/restarts.json (about 7 minutes)
	@$(PYTHON) -m lab.restarts $(if $(SEED),--seed $(SEED))

isolation: setup ## Measure how well tenants are kept apart; writes build/isolation.json (PARTS="decide …" for some of them)
	@$(PYTHON) -m lab.isolation $(PARTS)

operate: setup ## Count what people operate by: alerts, rules, panels, messages, pages; writes build/operate.json (PARTS="alerts …" for some of them)
	@$(PYTHON) -m lab.operate $(PARTS)

surfaces: setup ## Paste every block of the pages beside a cluster, try every value of the chart; writes build/surfaces.json (root)
	@$(PYTHON) -m lab.surfaces

harmless: setup ## Train small scripts without and with the trainer, compare every loss; writes build/harmless.json (about two minutes)
	@$(PYTHON) -m lab.harmless $(CASES)

faults: setup ## Harm the operator's writes, try odd policies, soak the full cluster (root; about 55 minutes); FULL=1 for all faults; writes build/faults.json
	@$(PYTHON) -m lab.faults $(if $(FULL),--full)

model: setup ## Explore the decisions of a small fleet exhaustively, judge the tests by mutants drawn by SEED; writes build/model.json
	@$(PYTHON) -m lab.model all $(if $(SEED),--seed $(SEED))

test: setup ## The tests of chart, control plane and full cluster; beside them check, images and the trainer's; from a bare machine too
	@$(PYTHON) -m lab.suite test

test-all: setup ## test, and the tests that take long (faults, benchmarks, an older minor of Kubernetes, cert-manager)
	@$(PYTHON) -m lab.suite test-all

bench-operator: setup ## The operator at scale against its budgets (20 minutes, estimated); build/bench/operator.json
	@$(PYTHON) -m lab.bench

bench-trainer: setup ## Measure the trainer: build/bench/trainer.json, about 6 minutes on 2 quiet cores; written part by part
	@OMP_WAIT_POLICY=PASSIVE $(PYTHON) -m precision_trainer bench figures --output build/bench/trainer.json

cluster-up: setup ## Bring up the local cluster: Kubernetes, images, Prometheus
	@$(PYTHON) -m lab up

cluster-down: setup ## Remove the local cluster and every trace of it
	@$(PYTHON) -m lab down

cluster-status: setup ## Show what runs in the local cluster
	@$(PYTHON) -m lab status

images: setup ## Build the images that are stale
	@$(PYTHON) -m lab images

push: setup ## Build the images that are stale, and push both to REGISTRY=host/path (root); RELEASE=folder pushes a release, signatures included, KEY=cosign.pub that you trust
	@$(PYTHON) -m lab.release push $(if $(RELEASE),--release $(RELEASE)) $(if $(KEY),--key $(KEY))

install: setup ## Install the operator on a cluster and test it: CONTEXT=name REGISTRY=host/path PROMETHEUS=url
	@$(PYTHON) -m lab.release install $(if $(PROMETHEUS),--prometheus $(PROMETHEUS))

release: setup ## Build the images twice and compare; sign, describe and pack them, the chart and kubectl precision (root; KEY=cosign.key); build/release/VERSION
	@$(PYTHON) -m lab.release make $(if $(KEY),--key $(KEY))

release-verify: setup ## Verify a release offline (RELEASE=folder, KEY=cosign.pub that you trust; the newest made here, its own key)
	@$(PYTHON) -m lab.release verify $(RELEASE) $(if $(KEY),--key $(KEY))

krew: setup ## Write the manifest by which Krew installs the plugin: RELEASE=folder URI='https://host/path/{version}/{file}', KEY=cosign.pub that you trust; build/krew/precision.yaml
	@$(PYTHON) -m lab.release krew $(RELEASE) --uri '$(URI)' $(if $(KEY),--key $(KEY))

lock: setup ## Write requirements/*.txt again from pyproject.toml
	@lab/setup/lock.sh

clean: ## Remove the cluster, build/, .venv and all caches of tools in this checkout
	@if [ -d build/cluster ]; then lab/setup/bootstrap.sh && $(PYTHON) -m lab down; fi
	@rm -rf build .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

clean-cache: clean ## clean, and remove what all checkouts of this machine share (compiled Kubernetes, images)
	@rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/genesis-precision"
