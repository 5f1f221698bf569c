"""A thin client of etcd's v3 API: several endpoints, deadlines, watches that resume, TLS and passwords."""
