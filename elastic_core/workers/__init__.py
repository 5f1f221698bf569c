"""The workers of one node: their processes, environment, output and failures."""
