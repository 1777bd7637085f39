"""OpenFlow 1.3: plain messages, their encoding (by os-ken), and the server for switches."""
