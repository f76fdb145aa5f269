"""Tables and figures regenerated from runs' manifests and trials: Markdown, PNG, SVG, one HTML page."""

from salience_experiments.report.builder import build_report, headline_table

__all__ = ["build_report", "headline_table"]
