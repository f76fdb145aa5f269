"""Where a model comes from and how it is loaded: sources, bundled wheels, GGUF, placement."""

__all__: list[str] = []
