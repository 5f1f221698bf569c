"""Commands that operate on a job from outside: `status`, `drain` and `serve`."""
