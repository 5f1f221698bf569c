"""A health endpoint over HTTP, with probes, metrics and a page to look at: the endpoint http of elastic-core."""
