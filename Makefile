# Every target works from a fresh clone: it first makes the virtual environment that it needs.
.POSIX:
.SUFFIXES:
.PHONY: help install lab test test-all check bench docs pictures format lock clean
unexport PYTHONHOME PYTHONPATH VIRTUAL_ENV

SHELL = /bin/sh
VENV = .venv
PY = $(VENV)/bin/python
STAMP = $(VENV)/.installed
SITE_PACKAGES = $(VENV)/docs
TOUR = notebooks/00_tour
LAB_ARGS =
PYTEST_ARGS =
# worksteal keeps the tests of a file in one process, so that they share what the file makes once.
PYTEST = $(PY) -m pytest -n 2 --dist worksteal --timeout 300 $(PYTEST_ARGS)

help:
	@echo 'make lab       open the tour in JupyterLab (LAB_ARGS=... are passed to JupyterLab)'
	@echo 'make test      make check, then the tests (PYTEST_ARGS=... are passed to pytest)'
	@echo 'make test-all  make test, with the slow tests, those against torch and other runtimes, which it installs, new random examples, and make docs'
	@echo 'make check     formatting, lint, types and import layers'
	@echo 'make bench     benchmarks of the engine: counts and timings'
	@echo 'make docs      build the site of the documentation in build/site'
	@echo 'make pictures  redraw the pictures of the documentation (needs Chromium and Graphviz)'
	@echo 'make format    format the sources'
	@echo 'make lock      resolve the dependencies into requirements.lock'
	@echo 'make clean     remove all generated files and the virtual environment'

install: $(STAMP)

# The interpreter is PYTHON=... if given, else python3.11 if it runs, else python3.
$(STAMP): pyproject.toml requirements.lock
	@python='$(PYTHON)'; \
	for p in python3.11 python3; do \
	    [ -n "$$python" ] || ! "$$p" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || python=$$p; \
	done; \
	[ -n "$$python" ] || { echo 'error: no python3 of version 3.11 or newer with the venv module was found' >&2; exit 2; }; \
	[ -x $(PY) ] && $(PY) -c '' 2>/dev/null || { echo "$$python -m venv --clear $(VENV)"; "$$python" -m venv --clear $(VENV); }
	$(PY) -m pip install --quiet --quiet --disable-pip-version-check -r requirements.lock
	$(PY) -m pip install --quiet --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	mkdir -p $(VENV)/share/jupyter/lab/settings
	printf '%s\n' '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false},' \
	    '"@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"python": "Jupytext Notebook"}}}' \
	    > $(VENV)/share/jupyter/lab/settings/overrides.json
	touch $@

# Made only if missing, so that an open notebook is never overwritten.
$(TOUR).ipynb: | $(STAMP)
	$(PY) -m jupytext --to ipynb --set-kernel python3 $(TOUR).py

lab: $(STAMP) $(TOUR).ipynb
	root=; [ "$$(id -u)" != 0 ] || root=--allow-root; \
	$(PY) -m jupyterlab $$root --ServerApp.root_dir="$$PWD" $(LAB_ARGS) $(TOUR).ipynb

test: check
	$(PYTEST) -m 'not slow'

# Also builds the site, installs torch and other runtimes (extras, not locked), so that the tests that compare with them run; draws new examples.
test-all: check
	$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation -e '.[torch,rivals]'
	$(PYTEST) --hypothesis-profile random
	$(MAKE) docs

check: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy --strict
	$(VENV)/bin/lint-imports --no-logo

bench: $(STAMP)
	$(PY) -m benchmarks

# Sphinx needs another docutils than the notebooks, so its packages are in a folder of their own.
$(SITE_PACKAGES)/.installed: docs/requirements.lock | $(STAMP)
	$(PY) -m pip install --quiet --quiet --disable-pip-version-check --no-deps --upgrade --target $(SITE_PACKAGES) -r docs/requirements.lock
	touch $@

docs: $(STAMP) $(SITE_PACKAGES)/.installed
	PYTHONPATH=$(SITE_PACKAGES) $(PY) -m sphinx -W --keep-going -q -b html docs build/site
	@echo 'open build/site/index.html'

pictures: $(STAMP)
	PYTHONPATH=. $(PY) docs/pictures.py
	$(PY) docs/packages.py

format: $(STAMP)
	$(PY) -m ruff check --fix-only --quiet .
	$(PY) -m ruff format .

# Resolved for Python 3.11.0, the oldest supported version; hatchling and editables install the project itself.
lock:
	rm -rf build && mkdir build
	python3.11 -m venv build/venv
	build/venv/bin/python -m pip install --quiet --quiet --dry-run --report build/report.json --python-version 3.11.0 \
	    --target build/target --only-binary :all: '.[all]' hatchling editables
	build/venv/bin/python -c 'import json, re; \
	    found = [each["metadata"] for each in json.load(open("build/report.json"))["install"]]; \
	    until = {each["name"]: re.findall(r"<\s*(3[.]\d+)", each.get("requires_python", "")) for each in found}; \
	    names = {each["name"]: each["version"] for each in found if each["name"] != "einnet-explore"}; \
	    print(*(f"{name}=={names[name]}" + "".join(f"; python_version < \"{version}\"" for version in until[name]) \
	        for name in sorted(names, key=str.lower)), sep="\n")' > build/requirements.lock
	cp build/requirements.lock requirements.lock
	grep -v '^docutils==' requirements.lock > build/constraints
	build/venv/bin/python -m pip install --quiet --quiet --dry-run --report build/docs.json --python-version 3.11.0 \
	    --target build/target --only-binary :all: -c build/constraints sphinx myst-nb pydata-sphinx-theme sphinx-mathjax-offline sphinx-revealjs
	build/venv/bin/python -c 'import json; \
	    found = [each["metadata"] for each in json.load(open("build/docs.json"))["install"]]; \
	    pins = {"{name}=={version}".format(**each) for each in found} - set(open("requirements.lock").read().split()); \
	    print(*sorted(pins, key=str.lower), sep="\n")' > docs/requirements.lock
	rm -rf build

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
