"""Salience: a local inference harness that makes a Hugging Face model use its memory."""

from salience.harness import Answer, Explanation, Harness
from salience_memory import Memory, MemoryType
from salience_models import BiasPlan, Receipt, Sampling, Steering, SteeringMethod

__all__ = [
    "Answer",
    "BiasPlan",
    "Explanation",
    "Harness",
    "Memory",
    "MemoryType",
    "Receipt",
    "Sampling",
    "Steering",
    "SteeringMethod",
]
