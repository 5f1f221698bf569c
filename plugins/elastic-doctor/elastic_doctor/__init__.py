"""`elastic doctor` checks whether a run would work on this machine. All measurements have time limits. Pure functions
judge the measured values."""
