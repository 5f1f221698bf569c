"""Notice sources for elastic-core: clouds, Slurm, files and URLs that announce that a node must leave its job."""
