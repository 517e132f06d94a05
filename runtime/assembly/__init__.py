"""Assembly of tasks from a plan and the streams that it is bound to."""
