"""Rules that an answer cannot break, in any tokenisation."""

from salience_models.constraints.vocabulary import Vocabulary, read_vocabulary

__all__ = ["Vocabulary", "read_vocabulary"]
