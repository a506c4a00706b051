"""The paper, run again: tasks, settings, runner, tables, claims."""
