"""OpenTelemetry for elastic-core: exports a span for each recovery of a job."""
