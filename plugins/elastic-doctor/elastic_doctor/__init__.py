"""`elastic doctor` checks whether a run would work on this machine. All measurements have time limits. The measured
values are judged by pure functions."""
