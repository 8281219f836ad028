# Environments for both ends of what is supported: .venv3 loads the scripts, .venv5 the same builders as classes;
# .venv2 holds the oldest datasets that a staged repository is loaded with, .venvclients the field's own tools.
PYTHON ?= python3

.PHONY: demo test test-clients lint fuzz bench bench-full clean

demo: .venv3/ready
	.venv3/bin/python -m tools.demo .demo

test: export RETRIEVAL_DATASETS_219 = $(CURDIR)/.venv2/bin/python
test: .venv2/ready .venv3/ready .venv5/ready lint
	.venv3/bin/python -m pytest --numprocesses 2 --dist loadfile
	.venv5/bin/python -m pytest --numprocesses 2 --dist loadfile

# MTEB needs Python 3.11; idle threads of PyTorch that spin would double the time on shared cores.
test-clients: export HF_HUB_OFFLINE = 1
test-clients: export OMP_WAIT_POLICY = PASSIVE
test-clients: .venvclients/ready
	.venvclients/bin/python -m pytest tests/clients

lint: .venv5/ready
	.venv5/bin/ruff check .
	.venv5/bin/ruff format --check .

# At most half an hour for the inputs, and some minutes for broken connections and killed runs; exit code 1 if any fails.
fuzz: .venv5/ready
	.venv5/bin/python -m tests.fuzz

bench: .venv3/ready .venv5/ready
	.venv3/bin/python -m tools.bench
	.venv5/bin/python -m tools.bench
	.venv5/bin/python -m tools.bench_stage

bench-full: .venv5/ready
	.venv5/bin/python -m tools.bench_full

clean:
	rm -rf .venv2 .venv3 .venv5 .venvclients .demo .pytest_cache .ruff_cache .hypothesis *.egg-info build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv2/ready: pyproject.toml
	$(PYTHON) -m venv .venv2
	.venv2/bin/python -m pip install --quiet 'datasets==2.19.2' 'pyarrow>=15,<21'
	touch $@

.venv3/ready: LIBRARY = datasets==3.6.0
.venv5/ready: LIBRARY = datasets>=5,<6
.venv3/ready .venv5/ready: .venv%/ready: pyproject.toml
	$(PYTHON) -m venv .venv$*
	.venv$*/bin/python -m pip install --quiet --editable '.[tools,test]' '$(LIBRARY)'
	touch $@

# PyTorch first and by itself, so that nothing after it asks for another; TORCH names another build where that is wanted.
TORCH ?= torch==2.13.0
.venvclients/ready: pyproject.toml
	$(PYTHON) -m venv .venvclients
	.venvclients/bin/python -m pip install --quiet --no-compile '$(TORCH)'
	.venvclients/bin/python -m pip install --quiet --no-compile --editable '.[tools,clients]'
	touch $@
