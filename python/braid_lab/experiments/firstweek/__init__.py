"""The first week of a person with Braid: programs run while lines and daemons come and go."""
