# Two environments, one for each end of what is supported: .venv3 loads the scripts, .venv5 the same builders as classes.
PYTHON ?= python3

.PHONY: demo test lint bench bench-full clean

demo: .venv3/ready
	.venv3/bin/python -m tools.demo .demo

test: .venv3/ready .venv5/ready lint
	.venv3/bin/python -m pytest
	.venv5/bin/python -m pytest

lint: .venv5/ready
	.venv5/bin/ruff check .
	.venv5/bin/ruff format --check .

bench: .venv3/ready .venv5/ready
	.venv3/bin/python -m tools.bench
	.venv5/bin/python -m tools.bench

bench-full: .venv5/ready
	.venv5/bin/python -m tools.bench_full

clean:
	rm -rf .venv3 .venv5 .demo .pytest_cache .ruff_cache *.egg-info build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv3/ready: LIBRARY = datasets==3.6.0
.venv5/ready: LIBRARY = datasets>=5,<6
.venv%/ready: pyproject.toml
	$(PYTHON) -m venv .venv$*
	.venv$*/bin/python -m pip install --quiet --editable '.[tools,test]' '$(LIBRARY)'
	touch $@
