"""Settings: the one place where the environment is read."""

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict

__all__ = ["DEFAULT_MODEL", "DEFAULT_TEMPLATE", "Settings", "default_memory_db", "load_settings"]

DEFAULT_MODEL = "bundled:qwen2.5-coder-0.5b-instruct"
DEFAULT_TEMPLATE = "personal_assistant"


class Settings(BaseModel):
    """Folders and files that the machine decides.

    `cache_dir` holds pulled and converted models (environment `SALIENCE_CACHE`; None = the user's
    cache folder), `data_dir` public data files (`SALIENCE_DATA`), `memory_db` is the memory store
    (`SALIENCE_MEMORY`; None = `default_memory_db()`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cache_dir: Path | None = None
    data_dir: Path | None = None
    memory_db: Path | None = None


def load_settings() -> Settings:
    """Settings from the environment; an empty variable counts as unset."""
    return Settings(
        cache_dir=_path("SALIENCE_CACHE"),
        data_dir=_path("SALIENCE_DATA"),
        memory_db=_path("SALIENCE_MEMORY"),
    )


def default_memory_db() -> Path:
    """Where memories are kept unless said otherwise: `salience/memory.db` in the user's data folder."""
    return (_path("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "salience" / "memory.db"


def _path(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else None
