"""Experiments: tasks, arms, the runner and the report."""
