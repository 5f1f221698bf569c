"""The interfaces that plugins implement, and through which the core's packages communicate with each other."""
