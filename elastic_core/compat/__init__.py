"""For programs written for torch's launcher: its modules and functions by our names, rendezvous backends of the two
methods that its backends have, stores like its own as backends, and the names that its users expect."""
