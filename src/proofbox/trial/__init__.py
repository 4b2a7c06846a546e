"""From a task to a verdict: one trial, many trials, what is tried again and when to stop."""
