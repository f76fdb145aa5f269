"""How a context window is shared out between the layers of a prompt and its answer."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["LayerBudgets", "LayerShares"]


@dataclass(frozen=True)
class LayerBudgets:
    """Tokens for each part of one window."""

    system_tokens: int
    """System rules, constraints, state and tools (L0, L1)."""
    memory_tokens: int
    """Recalled memories (L2)."""
    history_tokens: int
    """Dialogue (L3)."""
    tool_result_tokens: int
    reserve_tokens: int
    """The question and the answer."""


class LayerShares(BaseModel):
    """Parts of the window, in thousands of tokens of a window of 16 thousand; other windows in proportion."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    system: float = Field(default=3.0, gt=0.0)
    history: float = Field(default=6.0, gt=0.0)
    tool_results: float = Field(default=4.0, ge=0.0)
    memories: float = Field(default=1.0, gt=0.0)
    reserve: float = Field(default=2.0, gt=0.0)

    def scale(self, window_tokens: int) -> LayerBudgets:
        """The shares of a window; what rounding leaves over goes to the reserve."""
        total = self.system + self.history + self.tool_results + self.memories + self.reserve
        system, memories, history, tools = (
            int(window_tokens * part / total)
            for part in (self.system, self.memories, self.history, self.tool_results)
        )
        return LayerBudgets(
            system, memories, history, tools, window_tokens - system - memories - history - tools
        )
