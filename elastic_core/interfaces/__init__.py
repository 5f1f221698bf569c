"""The interfaces that plugins implement and that the core's packages use to talk to each other."""
