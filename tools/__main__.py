"""`python -m tools COMMAND …`: finds the command's module, runs it, and turns what goes wrong into one line."""

import argparse
import importlib
import os
import sys

from tools.errors import InputError

COMMANDS = {  # command -> what it does; its module has the same name
    "sample": "write the embedded sample: a small upstream of each dataset",
    "simulate": "write upstreams of the published size and shape, of synthetic text",
    "judged": "store which judged pages the corpus has, so that loading qrels need not read it",
    "bm25": "build BM25 candidate lists",
    "dense": "build dense candidate lists with a sentence-transformers model, or with lsa",
    "hybrid": "fuse candidate lists by reciprocal rank",
    "evaluate": "measure candidate lists or a TREC run",
    "stage": "write a repository of Parquet files with a card, and push it to the Hub",
    "export": "write a dataset in BEIR's layout, or as TREC topics, qrels and runs",
    "verify": "check a build against its rules, the published figures, or another copy",
    "infos": "rewrite a dataset's part of dataset_infos.json from a build",
}


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong with the usage in one line."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """The command's arguments; `run` is its function. Only the chosen command's module is imported."""
    parser = OneLineParser(
        prog="python -m tools",
        description="Offline commands that keep Poetry50KRetrieval and NanoDAPFAM.",
        epilog="Exit codes: 0 done, 1 a check failed, 2 bad usage or input. `COMMAND --help` has an example.",
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        if name not in argv[:1]:
            subparsers.add_parser(name, help=summary)
            continue
        module = importlib.import_module(f"tools.{name}")
        description, example = f"{summary[0].upper()}{summary[1:]}.", f"example: {module.EXAMPLE}"
        subparser = subparsers.add_parser(name, help=summary, description=description, epilog=example)
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Runs one command and returns its exit code."""
    try:
        arguments = parse_arguments(argv)
        return arguments.run(arguments)
    except ImportError as error:
        message = f"{error}; this command needs more packages: pip install -e '.[tools]'"
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        message = f"{error.filename or 'reading or writing'}: {error.strerror or error}"
    except (InputError, ValueError) as error:
        from tools.collection import is_input_error

        if not is_input_error(error):
            raise
        message = str(error)
    print(f"python -m tools {argv[0]}: {' '.join(message.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
