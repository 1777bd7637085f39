"""Networks of namespaces: the namespaces, links between them, and whole topologies."""
