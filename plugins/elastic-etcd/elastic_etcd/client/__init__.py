"""A thin client for etcd's v3 API, with failover, deadlines, watches that resume, TLS and passwords."""
