"""Reading UTF-8 that may stop in the middle of a character."""

from codecs import utf_8_decode
from collections.abc import Iterator
from sys import maxunicode

__all__ = ["completion_codes", "completions", "decode_prefix"]


def decode_prefix(data: bytes) -> tuple[str, bytes] | None:
    """The whole characters of `data` and the bytes of one unfinished; None if no text begins with `data`."""
    try:
        text, n_used = utf_8_decode(data, "strict", False)
    except UnicodeDecodeError:
        return None
    tail = data[n_used:]
    # Python waits for the third byte of a surrogate before it refuses it; nothing could follow the second.
    return None if tail[:1] == b"\xed" and tail[1:2] >= b"\xa0" else (text, tail)


def completions(tail: bytes) -> Iterator[str]:
    """Every character whose bytes begin with `tail`, ascending."""
    return (chr(code) for code in completion_codes(tail) if not 0xD800 <= code <= 0xDFFF)


def completion_codes(tail: bytes) -> range:
    """The code points whose bytes begin with `tail`, surrogates included.

    Args:
        tail: What `decode_prefix` left unfinished.
    """
    n_bytes = 2 + (tail[0] >= 0xE0) + (tail[0] >= 0xF0)
    code = tail[0] & (0x1F, 0x0F, 0x07)[n_bytes - 2]
    for byte in tail[1:]:
        code = code << 6 | byte & 0x3F
    n_free_bits = 6 * (n_bytes - len(tail))
    shortest = (0x80, 0x800, 0x10000)[n_bytes - 2]
    return range(max(code << n_free_bits, shortest), min((code + 1) << n_free_bits, maxunicode + 1))
