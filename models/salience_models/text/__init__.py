"""Messages to tokens, and which tokens each block holds."""

__all__: list[str] = []
