"""Notice sources for elastic-core: clouds, Slurm, files and URLs that announce when a node must leave its job."""
