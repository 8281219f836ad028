"""A staged folder to a dataset repository on the Hub: one commit of what differs."""

import sys
from collections.abc import Sequence
from pathlib import Path

import huggingface_hub
from huggingface_hub.utils import HFValidationError, disable_progress_bars, validate_repo_id

from tools.errors import InputError


def check_push(repo_id: str, needs_token: bool) -> None:
    """InputError where pushing cannot succeed: the id is none, or there is no token."""
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InputError(f"--push {repo_id}: not a repository id: {error}") from error
    if needs_token and not huggingface_hub.get_token():
        raise InputError(f"--push {repo_id}: no Hugging Face token; log in with `hf auth login`, or set HF_TOKEN")


def list_files(folder: Path) -> str:
    """Path and size of every file, a line each, and their sum: what a repository that is empty would get."""
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    width = len(f"{sum(sizes.values()):,}")
    lines = [f"{sizes[path]:>{width},}  {path}" for path in sorted(sizes)]
    return "\n".join([*lines, f"{sum(sizes.values()):>{width},}  bytes in {len(sizes)} files; nothing was pushed"])


def push(folder: Path, repo_id: str, owned: Sequence[str]) -> str:
    """Makes the repository if there is none and commits what differs; files that match `owned` and are gone go too.

    The library hashes each file and uploads only those that the Hub does not have, of large ones only the chunks.
    Returns the address of the commit.
    """
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        huggingface_hub.create_repo(repo_id, repo_type="dataset", exist_ok=True)
        commit = huggingface_hub.upload_folder(
            repo_id=repo_id,
            repo_type="dataset",
            folder_path=folder,
            delete_patterns=list(owned),
            commit_message="Stage the dataset",
        )
    except Exception as error:  # the library's own errors, and those of whichever HTTP client it stands on
        cause = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(
            f"--push {repo_id}: {cause}; {folder} is whole, to push it later: "
            f"hf upload {repo_id} {folder} --repo-type dataset"
        ) from error
    return f"pushed: {getattr(commit, 'commit_url', commit)}"
