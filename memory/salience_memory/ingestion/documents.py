"""Reads a document of either format."""

from pathlib import Path

from salience_memory.errors import DocumentUnreadable
from salience_memory.ingestion.elements import SourceText
from salience_memory.ingestion.markdown import read_markdown
from salience_memory.ingestion.pdf import is_pdf, read_pdf

__all__ = ["read_document"]

_MARKDOWN_SUFFIXES = (".md", ".markdown", ".mdown", ".txt")


def read_document(path: Path) -> SourceText:
    """Read a PDF (known by its first bytes) or Markdown file (by its name).

    Raises:
        DocumentUnreadable: It cannot be read, is neither, is encrypted, damaged, or holds no text.
        MissingExtra: It is a PDF and pymupdf is not installed.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise DocumentUnreadable(f"document {path} does not exist") from error
    except OSError as error:
        raise DocumentUnreadable(f"document {path} cannot be read: {error.strerror or error}") from error
    suffix = path.suffix.lower()
    if not data.strip():
        raise DocumentUnreadable(f"document {path} must hold text, got an empty file")
    if is_pdf(data) and suffix not in _MARKDOWN_SUFFIXES:
        return read_pdf(data, str(path))
    if suffix == ".pdf":
        raise DocumentUnreadable(f"document {path} must be a PDF, got a file that does not begin as one")
    if suffix in _MARKDOWN_SUFFIXES:
        return read_markdown(data, str(path))
    expected = ", ".join((".pdf", *_MARKDOWN_SUFFIXES))
    raise DocumentUnreadable(f"document {path} must be a PDF or Markdown file ({expected}), got '{suffix}'")
