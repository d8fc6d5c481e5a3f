"""Member clusters and the hub through the kubernetes client."""
