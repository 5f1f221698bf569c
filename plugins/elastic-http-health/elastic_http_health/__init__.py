"""The health endpoint `http` of elastic-core: probes, metrics and a status page over HTTP."""
