"""The clients: what a person's machine asks of the internet. Each is a program that prints one line of JSON."""
