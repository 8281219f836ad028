"""Files that are whole or not there."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path, write: Callable[[Path], object], replace: bool = True) -> None:
    """Has `write` fill a temporary file in the same folder, flushes it to disk and gives it its name.

    FileExistsError if the name is taken and not to be replaced; other errors of the disk name the path.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".incomplete", dir=path.parent)
        os.close(handle)
        try:
            write(Path(temporary))
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            (os.replace if replace else os.link)(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
