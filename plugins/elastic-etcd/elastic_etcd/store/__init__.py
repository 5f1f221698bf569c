"""A key-value store in etcd: `KeyStore`, and with torch, the torch store `EtcdStore`."""
