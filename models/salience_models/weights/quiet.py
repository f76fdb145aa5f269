"""Silence for transformers' and the hub's progress bars and warnings while a model loads."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Errors only inside the block; the verbosity and the bars are as they were afterwards."""
    verbosity = logging.get_verbosity()
    has_bar = logging.is_progress_bar_enabled()
    has_hub_bar = not are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bar:
            logging.enable_progress_bar()
        if has_hub_bar:
            enable_progress_bars()
