"""A text file as it lies on the disk: UTF-8, plain or gzipped."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from attnflow._errors import InputError

ENDINGS = (".txt", ".txt.gz")


@dataclass(frozen=True)
class Text:
    """The content of a text file, and a digest that identifies it."""

    content: str = field(repr=False)
    name: str
    sha256: str


def check_file(path: str | Path, field: str = "text") -> Path:
    """The path of a text file that exists and has a known ending, or the sentence why not."""
    path = Path(path)
    if path.is_dir():
        raise InputError(field, f"{path} is a folder; one file ending in {' or '.join(ENDINGS)}")
    if not path.name.endswith(ENDINGS):
        raise InputError(field, f"{path}; a file ending in {' or '.join(ENDINGS)}")
    if not path.is_file():
        raise InputError(field, f"{path}: no such file")
    return path


def read_text(path: str | Path, field: str = "text") -> Text:
    """Read a `.txt` or `.txt.gz` file, UTF-8; line ends are kept as they are."""
    path = check_file(path, field)
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if path.name.endswith(".gz") else raw
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "not a whole gzip file"
        raise InputError(field, f"{path}: {reason}") from None
    try:
        content = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            field, f"{path} is not UTF-8 text (byte {error.start} cannot be read)"
        ) from None
    if "\x00" in content:
        raise InputError(field, f"{path} holds zero bytes: a binary file, not a text")
    if not content.strip():
        raise InputError(field, f"{path} holds no text")
    return Text(content, path.name, hashlib.sha256(raw).hexdigest())
