"""Commands that operate on a job from outside: `status`, `drain`, `stop` and `serve`."""
