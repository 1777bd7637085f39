"""What a person notices in the first week with Braid: programs run while lines and daemons come and go."""
