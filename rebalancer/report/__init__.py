"""Plans, cycles and simulated days in words and pictures: table, JSON, self-contained HTML."""
