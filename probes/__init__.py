"""The probe exporter: measures round-trip time and loss to all other clusters."""
