"""`elastic doctor`: checks whether this machine has what a run needs. All is measured within bounds, then judged; the
judgements are pure functions of the measured values."""
