"""The simulated world: demand, plant and scenarios on a virtual clock."""
