"""OpenTelemetry for elastic-core: a span for each recovery of a job."""
