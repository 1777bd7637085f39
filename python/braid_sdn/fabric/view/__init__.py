"""Knowledge of the network: switches, links, hosts, latencies, loads."""
