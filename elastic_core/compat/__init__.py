"""For programs written for torch's launcher: nothing here adds a behaviour, it only answers to other names."""
