"""Caches, sampling, generation and scoring."""

__all__: list[str] = []
