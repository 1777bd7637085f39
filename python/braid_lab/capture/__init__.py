"""Web traffic in captures, after [host] §4: sites, their flows, and the gain of flow balancing over given lines."""
