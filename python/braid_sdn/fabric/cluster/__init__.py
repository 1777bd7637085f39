"""The store of what outlives a controller, and of who leads among several: a file, or etcd."""
