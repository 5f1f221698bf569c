"""`elastic doctor`: is this machine fit for that run? Everything is measured first, within bounds, then judged.

Judgements are pure functions over measured values. What measures has its input and output passed in.
"""
