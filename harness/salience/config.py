"""Settings: the one place where the environment is read."""

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict

__all__ = ["Settings", "load_settings"]


class Settings(BaseModel):
    """Folders that the machine decides.

    `cache_dir` holds pulled and converted models (environment `SALIENCE_CACHE`; None = the user's
    cache folder), `data_dir` public data files (`SALIENCE_DATA`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cache_dir: Path | None = None
    data_dir: Path | None = None


def load_settings() -> Settings:
    """Settings from the environment; an empty variable counts as unset."""
    return Settings(cache_dir=_folder("SALIENCE_CACHE"), data_dir=_folder("SALIENCE_DATA"))


def _folder(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else None
