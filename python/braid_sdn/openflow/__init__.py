"""OpenFlow 1.3: plain messages, their bytes (by os-ken), and the server that switches connect to."""
