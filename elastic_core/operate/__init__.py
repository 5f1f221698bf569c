"""What people do to a job from outside it: look at it, take a node out of it, give it a store of its own."""
