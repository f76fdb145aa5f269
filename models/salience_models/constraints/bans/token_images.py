"""A vocabulary seen through `fold`: which tokens may follow an unfinished character, and their symbols.

It depends on the tokens' bytes alone, so every automaton over one vocabulary shares it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from salience_models.constraints.bans.folding import fold
from salience_models.constraints.bans.utf8 import decode_prefix

__all__ = ["ImageTable", "TokenImages", "token_images"]


@dataclass(frozen=True)
class ImageTable:
    """The tokens whose bytes keep a text well formed, by their symbols.

    Attributes:
        images: Symbols of the characters that each token completes, ascending: tokens that begin alike are
            neighbours.
        ids: The token of each image.
        unfinished: Id, image and bytes left over of the tokens that end inside a character.
    """

    images: list[str]
    ids: list[int]
    unfinished: list[tuple[int, str, bytes]]


class TokenImages:
    """Symbols of every token, by the bytes of the unfinished character before it.

    Attributes:
        token_bytes: As given.
        image: Symbols of each token at a character's start; None for what is invalid there or has no bytes.
        tail: Bytes of the character that each token leaves unfinished.
        broken_ids: Tokens that are invalid at a character's start.
        silent_ids: Tokens without bytes, which may stand anywhere.
    """

    def __init__(self, token_bytes: Sequence[bytes | None]) -> None:
        self.token_bytes = tuple(token_bytes)
        self.image: list[str | None] = [None] * len(self.token_bytes)
        self.tail: list[bytes] = [b""] * len(self.token_bytes)
        self._continuing: list[int] = []  # tokens that may follow an unfinished character
        for token_id, data in enumerate(self.token_bytes):
            if data is None:
                continue
            if not data or 0x80 <= data[0] < 0xC0:
                self._continuing.append(token_id)
            if (read := decode_prefix(data)) is not None:
                self.image[token_id], self.tail[token_id] = fold(read[0]), read[1]
        self.silent_ids = [i for i, data in enumerate(self.token_bytes) if data is None]
        silent = set(self.silent_ids)
        self.broken_ids = [i for i, image in enumerate(self.image) if image is None and i not in silent]
        self._tables: dict[bytes, ImageTable] = {}

    def table(self, pending: bytes) -> ImageTable:
        """The tokens after `pending`, the bytes of an unfinished character or none."""
        known = self._tables.get(pending)
        if known is None:
            known = self._tables[pending] = self._build_table(pending)
        return known

    def _build_table(self, pending: bytes) -> ImageTable:
        found: dict[int, tuple[str, bytes]] = {}
        for token_id in self._continuing if pending else range(len(self.token_bytes)):
            read = self._complete(pending, token_id) if pending else self._at_start(token_id)
            if read is not None:
                found[token_id] = read
        ids = sorted(found, key=found.__getitem__)
        return ImageTable(
            [found[i][0] for i in ids],
            ids,
            [(i, *found[i]) for i in ids if found[i][1]],
        )

    def _at_start(self, token_id: int) -> tuple[str, bytes] | None:
        image = self.image[token_id]
        return None if image is None else (image, self.tail[token_id])

    def _complete(self, pending: bytes, token_id: int) -> tuple[str, bytes] | None:
        read = decode_prefix(pending + (self.token_bytes[token_id] or b""))
        return None if read is None else (fold(read[0]), read[1])


@lru_cache(maxsize=4)
def token_images(token_bytes: tuple[bytes | None, ...]) -> TokenImages:
    """The images of a vocabulary, kept for the last few vocabularies."""
    return TokenImages(token_bytes)
