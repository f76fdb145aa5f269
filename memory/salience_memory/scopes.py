"""Who may see a memory. Fail-closed: whoever names no user or session sees nothing of theirs."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["NOBODY", "Scope", "Viewer"]


class Scope(StrEnum):
    """Whose a memory is."""

    SESSION = "session"
    USER = "user"
    GLOBAL = "global"


class Viewer(BaseModel):
    """On whose behalf the store is asked. Global memories are everybody's.

    A user's memories are seen with that `user_id`, a session's with that `session_id`; a session memory
    that names a user as well is seen with both.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    user_id: str | None = Field(default=None, min_length=1)
    session_id: str | None = Field(default=None, min_length=1)

    def can_see(self, scope: Scope | None, user_id: str | None, session_id: str | None) -> bool:
        """Whether a memory of that scope and owner is this viewer's; one without a scope is nobody's."""
        if scope is Scope.GLOBAL:
            return True
        if scope is Scope.USER:
            return user_id is not None and user_id == self.user_id
        if scope is Scope.SESSION:
            is_session = session_id is not None and session_id == self.session_id
            return is_session and user_id in (None, self.user_id)
        return False


NOBODY = Viewer()
"""Sees global memories only."""
