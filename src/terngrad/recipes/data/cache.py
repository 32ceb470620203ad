"""Where data lies, how it gets there, and what to say if it does not.

Nothing is downloaded on import. A file that is downloaded is written under another name, compared with its published
checksum, and only then renamed: what has its right name is right, and several processes may download at once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from terngrad.errors import ConfigurationError

TIMEOUT_S = 10.0  # to connect, and then without a byte
NUM_NAMED = 6  # an error names so many of the missing files, and counts the others


class DataMissing(ConfigurationError):  # noqa: N818 - it is a state of the folder, and reads as one
    """Files of a dataset are not there; says which, in which folder, and how to get them."""


class DownloadFailed(Exception):  # noqa: N818 - never leaves this package but as the reason of a DataMissing
    """No address gave the file with the right checksum; says what each of them did instead."""


@dataclass(frozen=True)
class Source:
    """A public file: where it can be had, and its published MD5, which tells a damaged file, not a forged one."""

    urls: tuple[str, ...]
    md5: str


@dataclass(frozen=True)
class Layout:
    """The files of a dataset, in their usual place below the folder with all data."""

    dataset: str
    subfolder: str
    names: tuple[str, ...]
    advice: str  # how to get them by hand

    def complete(self, root: Path, fetch: Callable[[Path, list[str]], None] | None = None) -> Path:
        """The folder with all the files; `fetch` is asked for those that are missing, given the folder and the names.

        Raises DataMissing if some are missing then.
        """
        folder = root / self.subfolder
        missing = self._missing(folder)
        reason = ""
        if missing and fetch is not None:
            try:
                fetch(folder, missing)
            except DownloadFailed as error:
                reason = f" They could not be downloaded ({error})."
            missing = self._missing(folder)
        if missing:
            raise DataMissing(
                f"{self.dataset}: {in_short(missing)} missing in {folder}.{reason} {self.advice} If they are "
                f"elsewhere, give the folder that holds {self.subfolder} (--data on the command line)."
            )
        return folder

    def _missing(self, folder: Path) -> list[str]:
        return [name for name in self.names if not (folder / name).is_file()]


def in_short(names: list[str]) -> str:
    shown = ", ".join(names[:NUM_NAMED])
    return shown if len(names) <= NUM_NAMED else f"{shown} and {len(names) - NUM_NAMED:,} more"


def data_folder(folder: Path | None) -> Path:
    """`folder`, or where data lies by default: terngrad in $XDG_CACHE_HOME, which is ~/.cache unless it is set."""
    if folder is not None:
        return folder
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "terngrad"


def download(source: Source, target: Path) -> None:
    """Writes the file from the first address that gives it with the right checksum, or raises DownloadFailed."""
    failures = []
    for url in source.urls:
        failure = _download_from(url, source.md5, target)
        if failure is None:
            return
        failures.append(f"{url}: {failure}")
    raise DownloadFailed("; ".join(failures))


def _download_from(url: str, md5: str, target: Path) -> str | None:
    """None if the file is there now, else what went wrong."""
    try:
        _download_checked(url, md5, target)
    except (OSError, HTTPException, DownloadFailed) as error:
        if isinstance(error, HTTPError):
            error.close()  # it holds the connection
        return str(error) or type(error).__name__
    return None


def _download_checked(url: str, md5: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with renamed_at_the_end(target) as partial:
        with urlopen(url, timeout=TIMEOUT_S) as response, partial.open("wb") as file:
            shutil.copyfileobj(response, file)
        found = md5_of(partial)
        if found != md5:
            raise DownloadFailed(f"its MD5 is {found} and should be {md5}")


@contextmanager
def renamed_at_the_end(target: Path) -> Iterator[Path]:
    """A path to write to, which becomes `target` if all goes well and is removed if not."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def md5_of(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
