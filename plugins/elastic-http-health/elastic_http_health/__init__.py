"""The `http` health endpoint of elastic-core: probes, metrics and a status page over HTTP."""
