"""One adapter per neighbour of the controller; adapters do not know each other."""
