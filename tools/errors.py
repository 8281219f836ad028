"""What a command says when it cannot go on."""


class InputError(Exception):
    """Bad usage or input: one line that says what, where and what to do. The command prints it and exits with 2."""
