"""The interfaces that plugins implement and the packages of the core use."""
