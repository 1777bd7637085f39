"""Networks made of namespaces: the namespaces themselves, links between them, whole topologies."""
