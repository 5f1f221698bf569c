"""The interfaces that plugins implement and the rooms of the core use."""
