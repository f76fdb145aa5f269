"""Tasks: their items, prompts as published, and metrics."""

from salience_experiments.tasks.base import (
    GOLD_BLOCK,
    POSITIONS,
    QUESTION_SPAN,
    Block,
    Draw,
    Item,
    Layout,
    RenderedPrompt,
    Task,
    plain_layout,
)
from salience_experiments.tasks.constraint import ConstraintTask, constraint_generated
from salience_experiments.tasks.documents import DocumentsTask, documents_from_file
from salience_experiments.tasks.kv import AnswerStyle, KvTask, kv_from_file, kv_generated
from salience_experiments.tasks.neutral import NeutralTask, neutral_from_oracle
from salience_experiments.tasks.parity import ParityCell, mismatches, parity_scores
from salience_experiments.tasks.qa import QaSetting, QaTask, qa_from_file, qa_from_oracle
from salience_experiments.tasks.synthwiki import synthwiki_from_file

__all__ = [
    "GOLD_BLOCK",
    "POSITIONS",
    "QUESTION_SPAN",
    "AnswerStyle",
    "Block",
    "ConstraintTask",
    "DocumentsTask",
    "Draw",
    "Item",
    "KvTask",
    "Layout",
    "NeutralTask",
    "ParityCell",
    "QaSetting",
    "QaTask",
    "RenderedPrompt",
    "Task",
    "constraint_generated",
    "documents_from_file",
    "kv_from_file",
    "kv_generated",
    "mismatches",
    "neutral_from_oracle",
    "parity_scores",
    "plain_layout",
    "qa_from_file",
    "qa_from_oracle",
    "synthwiki_from_file",
]
