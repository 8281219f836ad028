"""Offline commands that keep the two datasets: `python -m tools COMMAND …`."""

__version__ = "1.0.0"
