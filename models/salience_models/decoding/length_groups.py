"""Which prompts of a batch are prefilled together: padding against passes."""

from collections.abc import Sequence

__all__ = ["group_by_length"]


def group_by_length(lengths: Sequence[int], pass_tokens: int) -> list[list[int]]:
    """Partition prompts so that the tokens computed, padding included, and the passes cost least.

    Every group is padded to its longest prompt, so an optimal group holds neighbours in length.

    Args:
        lengths: Tokens of each prompt.
        pass_tokens: How many tokens one more pass is worth.

    Returns:
        Places in `lengths`, group by group; within a group in the order given.
    """
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    best = [(0, 0)]  # for the shortest n prompts: what they cost, and where their last group starts
    for end in range(1, len(order) + 1):
        width = lengths[order[end - 1]]
        best.append(min((best[s][0] + (end - s) * width + pass_tokens, s) for s in range(end)))
    groups: list[list[int]] = []
    end = len(order)
    while end:
        start = best[end][1]
        groups.append(sorted(order[start:end]))
        end = start
    return groups[::-1]
