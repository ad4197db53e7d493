"""Text as it lies on the disk: UTF-8, JSON lines or Parquet, plain or gzipped, as documents."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from attnflow._errors import InputError, nearest

PLAIN = (".txt", ".txt.gz")
ENDINGS = (*PLAIN, ".jsonl", ".jsonl.gz", ".parquet")
COLUMN = "text"
"""The field of a JSON line, and the column of a table, that hold the text."""


@dataclass(frozen=True)
class Text:
    """The documents of a file, and a digest that identifies it."""

    documents: tuple[str, ...] = field(repr=False)
    name: str
    sha256: str

    @property
    def content(self) -> str:
        """The text of a file that is one document."""
        return "\n".join(self.documents)


def check_file(path: str | Path, field: str = "text", endings: tuple[str, ...] = PLAIN) -> Path:
    """The path of a file that exists and has a known ending, or the sentence why not."""
    path, known = Path(path), " or ".join(endings)
    if path.is_dir():
        raise InputError(field, f"{path} is a folder; one file ending in {known}")
    if not path.name.endswith(endings):
        raise InputError(field, f"{path}; a file ending in {known}")
    if not path.is_file():
        raise InputError(field, f"{path}: no such file")
    return path


def read_text(path: str | Path, field: str = "text") -> Text:
    """Read a `.txt` or `.txt.gz` file, UTF-8: one document, its line ends kept as they are."""
    path = check_file(path, field)
    raw = _bytes(path, field)
    return Text((_text(raw, path, field),), path.name, hashlib.sha256(raw).hexdigest())


def read_documents(path: str | Path, field: str = "text", column: str = COLUMN) -> Text:
    """Read the documents of a text file, of JSON lines or of a Parquet table.

    A `.txt` is one document; a line of `.jsonl` is an object or a string, one document each;
    a row of `.parquet` is one document. Empty ones are left out.
    """
    path = check_file(path, field, ENDINGS)
    if path.name.endswith(PLAIN):
        return read_text(path, field)
    if path.suffix == ".parquet":
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        documents = _rows(path, field, column)
    else:
        raw = _bytes(path, field)
        digest = hashlib.sha256(raw).hexdigest()
        documents = _lines(_text(raw, path, field), path, field, column)
    kept = tuple(document for document in documents if document.strip())
    if not kept:
        raise InputError(field, f"{path} holds no text")
    return Text(kept, path.name, digest)


def _lines(text: str, path: Path, field: str, column: str) -> Iterator[str]:
    # Not splitlines(): a JSON string may hold a bare line separator of Unicode.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise InputError(field, f"{path}, line {number}, is not JSON") from None
        found = value.get(column) if isinstance(value, dict) else value
        if not isinstance(found, str):
            if isinstance(value, dict) and column in value:
                kind = type(found).__name__
                raise InputError(
                    field, f"{path}, line {number}: {column!r} holds {kind}, not a text"
                )
            keys = list(value) if isinstance(value, dict) else []
            raise InputError(
                field,
                f"{path}, line {number}, has no text under {column!r}; {nearest(column, keys)}",
            )
        yield found


def _rows(path: Path, field: str, column: str) -> Iterator[str]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            field, "Parquet files need the extra: pip install 'attnflow[corpus]'"
        ) from None
    try:
        table = parquet.ParquetFile(path)
        names = table.schema_arrow.names
    except Exception:  # the library has an error of its own for each way to be damaged
        raise InputError(field, f"{path} is not a Parquet file") from None
    if column not in names:
        raise InputError(field, f"{path} has no column {column!r}; {nearest(column, names)}")
    for batch in table.iter_batches(columns=[column]):
        for value in batch.column(0).to_pylist():
            if value is not None and not isinstance(value, str):
                raise InputError(field, f"{path}: column {column!r} holds no text")
            yield value or ""


def _bytes(path: Path, field: str) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.name.endswith(".gz") else raw
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "not a whole gzip file"
        raise InputError(field, f"{path}: {reason}") from None


def _text(raw: bytes, path: Path, field: str) -> str:
    try:
        content = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(
            field, f"{path} is not UTF-8 text (byte {error.start}, in line {line}, cannot be read)"
        ) from None
    if "\x00" in content:
        raise InputError(field, f"{path} holds zero bytes: a binary file, not a text")
    if not content.strip():
        raise InputError(field, f"{path} holds no text")
    return content
