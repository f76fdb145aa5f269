"""Turn transformers' account of a load into an error: it only warns when it fills parameters with noise."""

from typing import Any

from salience_models.errors import WeightsUnreadable


def check_report(name: str, report: dict[str, Any]) -> None:
    """Refuse weights that do not hold every parameter in its shape.

    Args:
        name: The file or folder, for the message.
        report: `output_loading_info` of `from_pretrained`, with `ignore_mismatched_sizes`.

    Raises:
        WeightsUnreadable: Naming the first parameter that is missing or of another shape.
    """
    missing = sorted(report["missing_keys"])
    if missing:
        raise WeightsUnreadable(
            f"{name} must hold every parameter of its architecture, got {len(missing)} missing, "
            f"first {missing[0]}"
        )
    mismatched = sorted(report["mismatched_keys"])
    if mismatched:
        parameter, found, expected = mismatched[0]
        raise WeightsUnreadable(
            f"{name} must hold parameters of the shape that config.json implies, "
            f"got {parameter} {list(found)} instead of {list(expected)}"
        )
