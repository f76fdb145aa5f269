"""Attention with a bias per key."""

from salience_kernels.key_bias.api import KeyBiasImpl, key_bias_attention, resolve_impl

__all__ = ["KeyBiasImpl", "key_bias_attention", "resolve_impl"]
