"""What is asked of attention, the seam that applies it, and the receipt of what it did."""

__all__: list[str] = []
