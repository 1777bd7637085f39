"""Programs that people use every day, each as a client in one namespace and a server in another."""
