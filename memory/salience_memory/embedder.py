"""Text embedding by a sentence-transformers model."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from salience_memory.errors import EmbedderNotFound

__all__ = ["Embedder"]


class Embedder:
    """Turns texts into unit vectors. The model is loaded when first needed.

    Texts longer than `max_tokens` of the model's tokenizer are embedded by their beginning.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        name: str | None = None,
        revision: str | None = None,
        device: str = "auto",
        batch_size: int = 32,
    ) -> None:
        """Remember where the model is; nothing is read yet.

        Args:
            source: A folder that sentence-transformers wrote, or a hub id.
            name: What to call the model in fingerprints; default, the folder's name or the hub id.
            revision: Commit of a hub id; meaningless for a folder.
            device: `auto`, `cpu`, or `cuda:n`.
            batch_size: Texts embedded at once.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.source = source
        self.name = name or (source.name if isinstance(source, Path) else source.rstrip("/").split("/")[-1])
        self.revision = revision
        self.device = device
        self.batch_size = batch_size

    @cached_property
    def _model(self) -> Any:
        # Importing it takes seconds and brings the whole of transformers along.
        from sentence_transformers import SentenceTransformer

        if isinstance(self.source, Path) and not (self.source / "modules.json").is_file():
            raise EmbedderNotFound(
                f"{self.source} must hold a sentence-transformers model, got no modules.json"
            )
        device = None if self.device == "auto" else self.device
        try:
            model = SentenceTransformer(str(self.source), revision=self.revision, device=device)
        except OSError as error:
            raise EmbedderNotFound(f"no embedding model at {self.source!s}: {error}") from error
        return model.eval()

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self._model.get_embedding_dimension())

    @property
    def max_tokens(self) -> int:
        """How many tokens of a text the model reads."""
        return int(self._model.max_seq_length)

    @cached_property
    def fingerprint(self) -> str:
        """`name/dimension/l2/hash`; vectors of two embedders compare only where these are equal.

        The hash covers the parameters and how many tokens are read, not where the model lies.
        """
        digest = hashlib.sha256(str(self.max_tokens).encode())
        for key, tensor in sorted(self._model.state_dict().items()):
            values = tensor.detach().cpu().float().contiguous().numpy()
            digest.update(f"{key}{values.shape}".encode())
            digest.update(values.tobytes())
        return f"{self.name}/{self.dimension}/l2/{digest.hexdigest()[:16]}"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts.

        Returns:
            float32 [record, embed], each row of length 1; [0, embed] for no texts.
        """
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        vectors = self._model.encode(
            list(texts),
            batch_size=self.batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.ascontiguousarray(vectors, dtype=np.float32)

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """`embed`, so that an embedder is itself the `embed` that recall asks for."""
        return self.embed(texts)
