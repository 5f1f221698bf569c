"""`elastic doctor` checks whether a run would work on this machine. All measurements have time limits, and pure
functions then judge the measured values."""
