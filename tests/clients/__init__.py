"""What other packages make of a staged folder. A package, so that its conftest is not taken for the one above."""
