"""The paper's experiments, rerun: tasks, settings, runner, tables, claims."""
