# make demo    install into .venv, train with and without positions, end with a report to look at
# make test    the tests, but for the slow and the long ones
# make slow    tests that take seconds each; make long those that train or compile for minutes
# make docs    the site, with the runs and pages it shows; FAST=1 takes those of the last time
# make chaos   train while things happen to it, for MINUTES=5, drawn from SEED=1; `make slow` has a minute of it
# make nightly chaos and fuzz, then hostile runs, FOLDERS=1000 hostile Hugging Face folders, and huge inputs
# make fuzz    hostile bytes for every reader of files, SECONDS=60 each
# make release REPOSITORY=https://...  build what is released, its hashes and its bill of materials, check it, and stop before it is uploaded
# make check   format, lint, types, quick tests: before every commit
# make ci      the same without changing a file, with all tests but the long ones
# make planted plant 40 faults, and see that the nearest quick tests catch them; ONLY=attention for those of one folder

PYTHON ?= python3
BIN := .venv/bin
SOURCES := src tests examples benchmarks experiments docs/build hatch_build.py
# A file of tests goes to one process, so that what is trained for it is trained once; the slow ones come first.
SIDE_BY_SIDE := --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: setup demo test check ci planted slow long chaos nightly fuzz docs release addressed clean

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable '.[text,vision,explore]'
	@touch $@

.venv/developed: .venv/installed
	$(PIP) --editable '.[dev]'
	@touch $@

demo: setup
	$(BIN)/jarilab compare arithmetic --encodings none,sinusoidal,rotary --out runs/demo --set training.examples=500000 $(if $(OPEN),--open)

test: .venv/developed
	$(BIN)/python -m pytest -m "not slow and not long" $(SIDE_BY_SIDE)

slow: .venv/developed
	$(BIN)/python -m pytest -m "slow and not long" $(SIDE_BY_SIDE)

long: .venv/developed
	$(BIN)/python -m pytest -m long

chaos: .venv/developed
	cd tests && ../$(BIN)/python -m drills --minutes $(or $(MINUTES),5) --seed $(or $(SEED),1) $(if $(ONLY),--only $(ONLY))

nightly: chaos fuzz
	cd tests && ../$(BIN)/python -m drills.hostile
	cd tests && ../$(BIN)/python -m drills.hostile_folders --count $(or $(FOLDERS),1000) --seed $(or $(SEED),1)
	cd tests && ../$(BIN)/python -m drills.bounds --seed $(or $(SEED),1)

fuzz: .venv/developed
	cd tests && ../$(BIN)/python -m fuzz --seconds $(or $(SECONDS),60) $(if $(TARGET),--target $(TARGET))

check: .venv/developed
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/pyright
	$(BIN)/python -m pytest -m "not slow and not long and not browser" $(SIDE_BY_SIDE) --quiet

ci: .venv/developed
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/pyright
	$(MAKE) test
	$(MAKE) slow

planted: .venv/developed
	$(BIN)/python tests/planted.py $(if $(ONLY),--only $(ONLY))

.venv/documented: .venv/installed
	$(PIP) --editable '.[docs]'
	@touch $@

docs: .venv/documented
	$(BIN)/python docs/build $(if $(FAST),--fast)

addressed:
	@case "$(REPOSITORY)" in \
	*/ | *[!A-Za-z0-9._~:/-]*) ;; \
	https://?*/?*) exit 0 ;; \
	esac; \
	echo "where will this repository be? The index shows it, and the README's links lead there: make release REPOSITORY=https://HOST/OWNER/NAME, without a slash behind it; got '$(REPOSITORY)'" >&2; exit 2

# The time of the commit, so that whoever builds it gets the same bytes.
release: addressed .venv/developed
	$(PIP) --editable '.[all]'
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) JARILAB_REPOSITORY="$(REPOSITORY)" $(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python docs/build/bill_of_materials.py dist release
	@echo "dist/ is built and checked, release/ has its hashes and what it is made of; nothing was uploaded. CONTRIBUTING.md says what comes before that."

clean:
	rm -rf .venv runs site dist release .cache/docs
